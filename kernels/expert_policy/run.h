// From an inlinable policy (group.h) to the op's launch function: slot numbers and the state.
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/expert_policy/group.h"
#include "kernels/expert_policy/op.h"

namespace assay::expert_policy {

// `Make{}(objects, capacity, layers, experts)` builds the policy; it also tells states of different variants apart.
template <class Make>
class StateOf final : public State {
 public:
  using Policy = decltype(Make{}(0U, 0U, 0U, 0U));

  explicit StateOf(const ExpertPolicy::Shape& s)
      : shape_(s),
        pools_(s.per_layer ? static_cast<std::uint32_t>(s.layers) : 1U),
        pool_slots_(static_cast<std::uint32_t>(s.slots) / pools_),
        slot_of_(static_cast<std::size_t>(s.layers) * static_cast<std::size_t>(s.experts), -1),
        used_(pools_, 0),
        objects_(static_cast<std::size_t>(s.top_k)),
        rank_(static_cast<std::size_t>(s.top_k)),
        weights_(static_cast<std::size_t>(s.top_k)) {
    const auto layers = static_cast<std::uint32_t>(s.per_layer ? 1 : s.layers);
    const auto experts = static_cast<std::uint32_t>(s.experts);
    policies_.reserve(pools_);
    for (std::uint32_t p = 0; p < pools_; ++p)
      policies_.push_back(Make{}(layers * experts, pool_slots_, layers, experts));
  }

  const ExpertPolicy::Shape& shape() const { return shape_; }

  void run(const ExpertPolicy::Args& a) {
    const auto experts = static_cast<std::uint32_t>(shape_.experts);
    const auto layer = static_cast<std::uint32_t>(a.layer);
    if (a.layer < 0 || a.layer >= shape_.layers)
      throw std::logic_error("expert_policy: layer out of range");
    const std::uint32_t pool = shape_.per_layer ? layer : 0;
    const std::uint32_t base = layer * experts;                // of the layer's objects
    const std::uint32_t origin = shape_.per_layer ? base : 0;  // of the pool's objects
    Group g{objects_.data(),
            a.weights != nullptr ? weights_.data() : nullptr,
            0,
            shape_.per_layer ? 0 : layer,
            static_cast<std::uint64_t>(a.step)};
    for (int r = 0; r < shape_.top_k; ++r) {
      a.resident[r] = 0;
      a.slot[r] = -1;
      a.evicted[r] = -1;
      if (a.ids[r] < 0) continue;
      if (a.ids[r] >= shape_.experts)
        throw std::logic_error("expert_policy: expert id out of range");
      objects_[g.size] = base - origin + static_cast<std::uint32_t>(a.ids[r]);
      if (a.weights != nullptr) weights_[g.size] = a.weights[r];
      rank_[g.size++] = r;
    }
    Report report{this, a, origin, pool};
    policies_[pool].lookup_and_admit(g, report);
  }

 private:
  struct Report {
    StateOf* self;
    const ExpertPolicy::Args& a;
    std::uint32_t origin;
    std::uint32_t pool;
    std::int32_t& slot_of(std::uint32_t rank) {
      return self->slot_of_[origin + self->objects_[rank]];
    }
    void hit(std::uint32_t rank) {
      a.resident[self->rank_[rank]] = 1;
      a.slot[self->rank_[rank]] = slot_of(rank);
    }
    void admit(std::uint32_t rank, std::uint32_t victim) {
      std::int32_t slot = -1;
      if (victim == kNone) {
        slot = static_cast<std::int32_t>(pool * self->pool_slots_ + self->used_[pool]++);
      } else {
        std::swap(slot, self->slot_of_[origin + victim]);
        a.evicted[self->rank_[rank]] = static_cast<std::int32_t>(origin + victim);
      }
      slot_of(rank) = slot;
      a.slot[self->rank_[rank]] = slot;
    }
    void refuse(std::uint32_t) {}
  };

  ExpertPolicy::Shape shape_;
  std::uint32_t pools_;
  std::uint32_t pool_slots_;
  std::vector<std::int32_t> slot_of_;   // [layers * experts] or -1
  std::vector<std::uint32_t> used_;     // [pools] slots ever filled
  std::vector<Policy> policies_;        // [pools]
  std::vector<std::uint32_t> objects_;  // [top_k] the present group
  std::vector<int> rank_;               // [top_k] its ranks in the arguments
  std::vector<float> weights_;          // [top_k]
};

template <class Make>
void run(const ExpertPolicy::Shape& s, const ExpertPolicy::Args& a, Workspace, Stream) {
  if (*a.state == nullptr) {
    if (const Why why = s.illegal()) throw std::logic_error(std::string("expert_policy: ") + why);
    *a.state = std::make_unique<StateOf<Make>>(s);
  }
  auto* state = dynamic_cast<StateOf<Make>*>(a.state->get());
  if (state == nullptr || !(state->shape() == s)) {
    throw std::logic_error("expert_policy: the state belongs to another variant or shape");
  }
  state->run(a);
}

}  // namespace assay::expert_policy
