// doorbell_publish: routes a few tokens and rings for the host. From the router's logits it makes the ids and weights of
// router_topk, then writes a record into host memory that the device addresses (mapped): the ids and weights, and, when some
// chosen expert is not resident, the activations that the host's experts need; then the record's number.
//   n      = published + 1; record n lies in slot n mod slots of the ring
//   ring   = ids, weights; x only when resident is missing or 0 for some chosen expert; then sequence = n, published = n
// The host polls `sequence`; a record is whole when its number is seen and stays until slots - 1 more have been published.
// Not responsible for: the router's projection, quantising x, waiting for the host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay {

class Filler;

struct DoorbellPublish {
  static constexpr const char* kName = "doorbell_publish";
  static constexpr const char* kSwitch = "ASSAY_DOORBELL_PUBLISH";
  static constexpr const char* kSummary = "top-k of a few tokens, published to polling host code";
  static constexpr OpKind kKind = OpKind::kKernel;

  struct Shape {
    int tokens = 1;         // 1..8
    int experts = 1;        // 1..65536
    int top_k = 1;          // 1..min(experts, 64)
    int hidden = 1;         // elements of a token's activation, 1..65536
    int slots = 2;          // records of the ring, 1..65536
    bool residency = true;  // false: no expert is resident, Args::resident is not read
    std::string describe() const;
  };

  struct Args {
    const float* logits = nullptr;           // [tokens][experts]
    const float* scale = nullptr;            // [experts], the per-expert output scale
    const float* x = nullptr;                // [tokens][hidden]
    const std::int32_t* resident = nullptr;  // [experts], 0: not on the device
    std::int32_t* ids = nullptr;             // [tokens][top_k], for the device, written whole
    float* weights = nullptr;                // [tokens][top_k], for the device, written whole
    std::int32_t* published = nullptr;       // [1], device memory: the number of the last record
    // Mapped host memory.
    std::int32_t* ring_ids = nullptr;  // [slots][tokens][top_k]; only the record's slot is written
    float* ring_weights = nullptr;     // [slots][tokens][top_k]; only the record's slot is written
    float* ring_x =
        nullptr;  // [slots][tokens][hidden]; the record's slot, where something is missing
    std::int32_t* sequence = nullptr;  // [1], the number of the last whole record; never read
  };

  // Ids and weights: to the bit as router_topk promises, ties to the lowest id. Whoever sees record n in `sequence` (acquire)
  // sees all of its payload: every thread's stores are fenced system-wide before the number is stored, and it is stored once,
  // after all of them. One record a call, hits or not. Numbers only rise; they wrap like an int32. Same bits on repeat.
  // Graph capture: yes; a replay publishes the next number.
  static std::size_t workspace_bytes(const Shape&);
  static double bytes_moved(const Shape&);
  static double flops(const Shape&);
  static double error_bound(const Shape&);

  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    const auto tokens = static_cast<std::size_t>(s.tokens);
    const auto experts = static_cast<std::size_t>(s.experts);
    const auto slots = static_cast<std::size_t>(s.slots);
    const std::size_t chosen = tokens * static_cast<std::size_t>(s.top_k);
    const std::size_t values = tokens * static_cast<std::size_t>(s.hidden);
    v("logits", a.logits, tokens * experts, Dir::kIn);
    v("scale", a.scale, experts, Dir::kIn);
    v("x", a.x, values, Dir::kIn);
    if (s.residency) v("resident", a.resident, experts, Dir::kIn);
    v("ids", a.ids, chosen, Dir::kOut);
    v("weights", a.weights, chosen, Dir::kOut);
    v("published", a.published, 1, Dir::kInOut);
    v("ring_ids", a.ring_ids, slots * chosen, Dir::kInOut);
    v("ring_weights", a.ring_weights, slots * chosen, Dir::kInOut);
    v("ring_x", a.ring_x, slots * values, Dir::kInOut);
    v("sequence", a.sequence, 1, Dir::kOut);
  }

  enum class Hits { kAll, kOneMiss, kNone, kSome };
  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
    Hits hits = Hits::kSome;
    bool ties = false;  // all logits equal
  };
  // What fill() leaves in the ring and in `published`, by which the reference knows what must stay.
  static constexpr float kUntouched = -7.5F;
  static constexpr int kUntouchedId = -77;
  static constexpr int kPublished = 41;
  static std::vector<Case> cases();
  static void fill(const Case&, const Filler&);
  static std::vector<std::vector<double>> reference(const Shape&, const Args&);

  // The block size rule of threads256: what the smaller block was sized for.
  static constexpr int kSmallValues = 8 * 2560;
  static constexpr int kSmallIds = 80;
  static bool small(const Shape& s) {
    return s.tokens * s.hidden <= kSmallValues && s.tokens * s.top_k <= kSmallIds;
  }
};

}  // namespace assay
