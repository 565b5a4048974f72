// Keeps the experts that are expected back soonest: for each expert of a layer a running estimate of its discounted future
// use, learned while serving. Nothing is trained beforehand but the
// eight numbers of SuccessorRules.
//
//   value[j] = sum_i share_i * frequency_i[j] + sum_r w_r * follow[e_r][j]        e_r: the members of the layer's group, by rank
//
// frequency_i is the use of expert j averaged with half-life kHalfLives[i] steps; follow[e] says who comes after e in the same
// layer. follow is learned by temporal differences (Sutton 1988): with u[j] = 1 for a member, else 0,
//   error[j] = (1 - discount) * u[j] + discount * value[j] - value of the step before[j],   |error| <= 1
//   follow[e][j] += rate * w_r * error[j]                                         e: the members of the step before, by rank
// The victim is the resident expert with the lowest value * scale(layer). Every new step multiplies the scales of all layers by
// `carry` and serving a layer sets its scale back to carry^(-layer / layers): a layer whose turn is near is worth more than one
// just served (scales stay within 2^-20 .. 2^20). Ties go to the lower layer, then the lower expert. Work: some 64 multiply-adds an access at 64 experts a layer.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/expert_policy/group.h"

namespace assay::expert_policy {

struct SuccessorRules {
  static constexpr std::array<float, 4> kHalfLives = {2.0F, 8.0F, 32.0F, 256.0F};  // steps

  float discount = 0.0F;            // of a use one step further away, 0..1
  float carry = 1.0F;               // 1: the layers' order does not matter
  float rate = 0.0F;                // of learning who follows; 0: frequencies alone
  float rank_step = 1.0F;           // w_r = rank_step^r, 0..1
  std::array<float, 4> share = {};  // of each frequency
};

class Successor {
 public:
  static constexpr std::uint32_t kMaxExperts = 1024;  // a layer keeps two squares of floats

  Successor(std::uint32_t capacity,
            std::uint32_t layers,
            std::uint32_t experts,
            const SuccessorRules& rules)
      : rules_(rules),
        layers_(layers),
        experts_(experts),
        stride_((experts + kBlock - 1) / kBlock * kBlock),
        free_(capacity),
        value_(std::size_t{layers} * stride_, 0.0F),
        candidate_(std::size_t{layers} * stride_, kFar),
        resident_(std::size_t{layers} * stride_, 0),
        follow_(std::size_t{layers} * experts * stride_, 0.0F),
        error_(stride_, 0.0F),
        rows_(layers) {
    for (std::size_t i = 0; i < frequency_.size(); ++i) {
      frequency_[i].assign(std::size_t{layers} * stride_, 0.0F);
      keep_[i] = std::exp2(-1.0F / SuccessorRules::kHalfLives[i]);
    }
    for (std::uint32_t l = 0; l < layers; ++l) {
      rows_[l].members.reserve(experts);
      rows_[l].served_scale =
          std::pow(rules.carry, -static_cast<float>(l) / static_cast<float>(layers));
      rows_[l].scale = rows_[l].served_scale;
    }
  }

  template <class Sink>
  std::uint32_t lookup_and_admit(const Group& g, Sink&& sink) {
    if (g.size == 0) return 0;
    if (g.step != step_) {
      for (auto& row : rows_)
        row.scale = std::clamp(row.scale * rules_.carry, kLeastScale, 1.0F / kLeastScale);
      step_ = g.step;
    }
    const std::uint32_t layer = g.objects[0] / experts_;
    const std::uint32_t base = layer * experts_;
    Row& row = rows_[layer];
    observe(g, layer, base);
    MissSet missing;
    std::uint32_t misses = 0;
    for (std::uint32_t r = 0; r < g.size; ++r) {
      const std::size_t at = place(layer, g.objects[r] - base);
      candidate_[at] = kFar;  // no member is displaced by its own group
      if (resident_[at] != 0) {
        sink.hit(r);
      } else {
        missing.add(r);
        ++misses;
      }
    }
    if (misses != 0) {
      row.least = least(layer);
      missing.for_each([&](std::uint32_t r) {
        sink.admit(r, take_slot());
        resident_[place(layer, g.objects[r] - base)] = 1;
      });
    }
    for (const std::uint32_t e : row.members) candidate_[place(layer, e)] = value_[place(layer, e)];
    row.least = least(layer);
    return misses;
  }

 private:
  static constexpr std::uint32_t kBlock =
      16;  // floats; a constant count lets the compiler use vectors
  static constexpr float kLeastScale = 0x1p-20F;  // a layer that is never served must not overflow
  static constexpr float kFar = std::numeric_limits<float>::infinity();

  struct Row {
    std::vector<std::uint32_t> members;  // experts of the last group, by rank
    float served_scale = 1.0F;
    float scale = 1.0F;
    float least = kFar;  // of candidate_
  };

  std::size_t place(std::uint32_t layer, std::uint32_t expert) const {
    return std::size_t{layer} * stride_ + expert;
  }
  float* follow(std::uint32_t layer, std::uint32_t expert) {
    return follow_.data() + (std::size_t{layer} * experts_ + expert) * stride_;
  }
  // y += a * x over a padded row.
  void add(float* y, float a, const float* x) const {
    for (std::uint32_t b = 0; b < stride_; b += kBlock) {
      for (std::uint32_t i = 0; i < kBlock; ++i) y[b + i] += a * x[b + i];
    }
  }

  // The new values of a layer; what was expected of this group is learned from.
  void observe(const Group& g, std::uint32_t layer, std::uint32_t base) {
    Row& row = rows_[layer];
    float* value = value_.data() + place(layer, 0);
    for (std::uint32_t j = 0; j < stride_; ++j) error_[j] = -value[j];
    for (std::size_t i = 0; i < frequency_.size(); ++i) {
      float* f = frequency_[i].data() + place(layer, 0);
      for (std::uint32_t b = 0; b < stride_; b += kBlock) {
        for (std::uint32_t j = 0; j < kBlock; ++j) f[b + j] *= keep_[i];
      }
      for (std::uint32_t r = 0; r < g.size; ++r) f[g.objects[r] - base] += 1.0F - keep_[i];
    }
    std::fill(value, value + stride_, 0.0F);
    for (std::size_t i = 0; i < frequency_.size(); ++i)
      add(value, rules_.share[i], frequency_[i].data() + place(layer, 0));
    float w = 1.0F;
    for (std::uint32_t r = 0; r < g.size; ++r) {
      add(value, w, follow(layer, g.objects[r] - base));
      w *= rules_.rank_step;
    }
    add(error_.data(), rules_.discount, value);
    for (std::uint32_t r = 0; r < g.size; ++r)
      error_[g.objects[r] - base] += 1.0F - rules_.discount;
    for (auto& e : error_) e = std::clamp(e, -1.0F, 1.0F);
    float rate = rules_.rate;
    for (const std::uint32_t e : row.members) {
      add(follow(layer, e), rate, error_.data());
      rate *= rules_.rank_step;
    }
    row.members.resize(g.size);
    for (std::uint32_t r = 0; r < g.size; ++r) row.members[r] = g.objects[r] - base;
    row.scale = row.served_scale;
    float* candidate = candidate_.data() + place(layer, 0);
    const std::uint8_t* resident = resident_.data() + place(layer, 0);
    std::fill(candidate, candidate + experts_, kFar);
    for (std::uint32_t j = 0; j < experts_; ++j) {
      if (resident[j] != 0) candidate[j] = value[j];
    }
  }

  float least(std::uint32_t layer) const {
    const float* candidate = candidate_.data() + place(layer, 0);
    std::array<float, kBlock> low;
    low.fill(kFar);
    for (std::uint32_t b = 0; b < stride_; b += kBlock) {
      for (std::uint32_t i = 0; i < kBlock; ++i)
        low[i] = candidate[b + i] < low[i] ? candidate[b + i] : low[i];
    }
    return *std::min_element(low.begin(), low.end());
  }

  std::uint32_t take_slot() {
    if (free_ != 0) {
      --free_;
      return kNone;
    }
    std::uint32_t from = 0;
    float lowest = kFar;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      const float scaled = rows_[l].least * rows_[l].scale;
      if (scaled < lowest) {
        lowest = scaled;
        from = l;
      }
    }
    const float* begin = candidate_.data() + place(from, 0);
    const auto expert =
        static_cast<std::uint32_t>(std::find(begin, begin + experts_, rows_[from].least) - begin);
    candidate_[place(from, expert)] = kFar;
    resident_[place(from, expert)] = 0;
    rows_[from].least = least(from);
    return from * experts_ + expert;
  }

  SuccessorRules rules_;
  std::uint32_t layers_;
  std::uint32_t experts_;
  std::uint32_t stride_;  // floats a row, padded
  std::uint32_t free_;
  std::array<float, 4> keep_ = {};
  std::array<std::vector<float>, 4> frequency_;  // [layers][stride]
  std::vector<float> value_;                     // [layers][stride]
  std::vector<float> candidate_;  // [layers][stride] value of what may be displaced, else kFar
  std::vector<std::uint8_t> resident_;  // [layers][stride]
  std::vector<float> follow_;           // [layers][experts][stride]
  std::vector<float> error_;            // [stride]
  std::vector<Row> rows_;
  std::uint64_t step_ = ~std::uint64_t{0};
};

// The winner of `assay search` on recorded routing (successor.md); the variant and the policy `successor` use it.
inline constexpr SuccessorRules kSuccessorRules = {
    0.774F, 1.58F, 0.0289F, 0.827F, {0.096F, 0.00941F, 0.263F, 0.0F}};

}  // namespace assay::expert_policy
