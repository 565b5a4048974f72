// The op expert_policy beside a running model: every routing decision is fed to a cache that holds no weights, and what it
// decides is reported. The model's output cannot change: the cache only listens.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/forward.h"
#include "kernels/expert_policy/op.h"

namespace assay {

// What the cache did with one layer's choice for one token.
struct ShadowDecision {
  std::int64_t step = 0;  // tokens seen before, over all sequences
  int layer = 0;
  std::vector<std::int32_t> ids;       // [top_k] by falling gate weight
  std::vector<std::int32_t> resident;  // [top_k] 1: a hit
  std::vector<std::int32_t> slot;      // [top_k] where it lies now; -1: not admitted
  std::vector<std::int32_t>
      evicted;  // [top_k] object (layer * experts + expert) displaced, -1: none
};

class ShadowCache {
 public:
  // shape: layers, experts and top_k of the model. UserError when it breaks a rule of the op or names no variant.
  ShadowCache(const ExpertPolicy::Shape& shape, const std::string& variant);

  // A session's routing hook. Layers of a chunk arrive one after another; a token is served when its last layer is in, so
  // that the cache sees tokens in order however the sequence is cut.
  void routed(const RoutedChunk& chunk);
  void set_log(std::function<void(const ShadowDecision&)> log) { log_ = std::move(log); }

  std::int64_t steps() const { return step_; }
  std::uint64_t accesses() const { return accesses_; }
  std::uint64_t misses() const { return misses_; }

 private:
  ExpertPolicy::Shape shape_;
  Column<ExpertPolicy>::Fn policy_;
  std::unique_ptr<expert_policy::State> state_;
  std::function<void(const ShadowDecision&)> log_;
  std::vector<std::int32_t> ids_;  // [layers][tokens][top_k] of the present chunk
  std::vector<float> weights_;     // the same
  ShadowDecision decision_;
  std::int64_t step_ = 0;
  std::uint64_t accesses_ = 0;
  std::uint64_t misses_ = 0;
};

}  // namespace assay
