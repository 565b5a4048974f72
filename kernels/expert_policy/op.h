// expert_policy: which experts of all layers keep a slot of the device cache. One call a (step, layer): the experts that the
// router chose come in, and for each of them comes out whether it was resident, its slot, and whom it displaced.
// Not responsible for: moving weights, choosing experts, computing misses (moe_miss does). Host memory in every build.
// Rules common to all policies: group.h.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay {

namespace expert_policy {
// What a policy remembers between calls; made by the first call, owned by the caller, usable by one variant only.
class State {
 public:
  virtual ~State() = default;
};
}  // namespace expert_policy

struct ExpertPolicy {
  static constexpr const char* kName = "expert_policy";
  static constexpr const char* kSwitch = "ASSAY_EXPERT_POLICY";
  static constexpr const char* kSummary = "which experts keep a slot of the device cache";
  static constexpr OpKind kKind = OpKind::kPolicy;

  struct Shape {
    int layers = 0;   // MoE layers, 1..65535
    int experts = 0;  // routed experts a layer, 1..65535
    int top_k = 0;    // members of a group, 1..255
    int slots =
        0;  // whole cache, top_k..layers * experts; per_layer: a multiple of layers, top_k..experts each
    bool per_layer = false;  // false: one pool; true: every layer has slots / layers of its own
    // Null, or which rule the shape breaks.
    Why illegal() const;
    std::string describe() const;
    bool operator==(const Shape&) const = default;
  };

  struct Args {
    std::unique_ptr<expert_policy::State>* state = nullptr;  // null inside before the first call
    const std::int32_t* ids = nullptr;  // [top_k] distinct, by falling gate weight; -1: no member
    const float* weights = nullptr;     // [top_k] gate weights, or null
    int layer = 0;                      // 0..layers - 1
    std::int64_t step = 0;              // token counter of the engine; never falls
    std::int32_t* resident =
        nullptr;  // [top_k] out: 1 the expert had a slot when the call began, else 0
    std::int32_t* slot =
        nullptr;  // [top_k] out: its slot when the call ends, -1: not admitted or no member
    std::int32_t* evicted =
        nullptr;  // [top_k] out: the object (layer * experts + expert) displaced for it, -1: none
  };

  // Deterministic; the same decisions on repeat from an equal state. Allocates in the first call only. std::logic_error when
  // the state belongs to another variant or shape, or an id is out of range.
};

}  // namespace assay
