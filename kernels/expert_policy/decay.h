// Decayed frequency with a recency guard: the victim is the resident object with the lowest exponentially decayed use count
// that was not used in the last `guard` steps.
//
// Score: s <- s * 2^(-dt / half_life) + 1 on every use, resident or not (a score survives eviction). Scores at one present
// step compare like the forward sums  S = sum over uses u of 2^((step_u - base) / half_life),  which change on use only; so S
// is what is kept, and an aging loop is not needed. `base` moves up by 512 half-lives now and then, which scales every S by
// the exact power 2^-512 and therefore changes no comparison.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/expert_policy/group.h"

namespace assay::expert_policy {

// Some of the objects, each with a (key, stamp); the smallest can be found. Objects lie in rows about as long as there are
// rows, and every row knows its smallest: a change costs nothing unless it takes that one away, which costs one look at the row.
// On a few thousand objects that beats a heap, whose every level is a branch nobody can predict.
class RowMinima {
 public:
  explicit RowMinima(std::uint32_t objects)
      : row_(std::bit_ceil(
            std::max(kLane, static_cast<std::uint32_t>(std::sqrt(static_cast<double>(objects)))))),
        keys_((std::size_t{objects} + row_ - 1) / row_ * row_, kOut),
        stamps_(keys_.size(), 0),
        least_((keys_.size() / row_ + kLane - 1) / kLane * kLane, kNone),
        least_keys_(least_.size(), kOut) {}

  // key: finite; stamp: another one for every object.
  void insert(std::uint32_t o, double key, std::uint64_t stamp) {
    keys_[o] = key;
    stamps_[o] = stamp;
    const std::uint32_t r = o / row_;
    if (key < least_keys_[r] || (key == least_keys_[r] && stamp < stamps_[least_[r]])) {
      least_[r] = o;
      least_keys_[r] = key;
    }
  }
  void remove(std::uint32_t o) {
    keys_[o] = kOut;
    const std::uint32_t r = o / row_;
    if (least_[r] != o) return;
    const double* keys = keys_.data() + std::size_t{r} * row_;
    least_keys_[r] = smallest(keys, row_);
    least_[r] = kNone;
    if (least_keys_[r] == kOut) return;
    for (std::uint32_t i = 0; i < row_; ++i) {
      if (keys[i] == least_keys_[r] &&
          (least_[r] == kNone || stamps_[r * row_ + i] < stamps_[least_[r]]))
        least_[r] = r * row_ + i;
    }
  }
  // kNone when there is none.
  std::uint32_t least() const {
    const double key = smallest(least_keys_.data(), least_keys_.size());
    std::uint32_t found = kNone;
    if (key == kOut) return found;
    for (std::size_t r = 0; r < least_.size(); ++r) {
      if (least_keys_[r] == key && (found == kNone || stamps_[least_[r]] < stamps_[found]))
        found = least_[r];
    }
    return found;
  }
  void scale(double factor) {  // a power of two: the order stays
    for (auto* keys : {&keys_, &least_keys_}) {
      for (auto& k : *keys) {
        if (k != kOut) k *= factor;
      }
    }
  }

 private:
  static constexpr double kOut = std::numeric_limits<double>::infinity();
  static constexpr std::uint32_t kLane = 8;  // a constant count lets the compiler use vectors

  // size: a multiple of kLane.
  static double smallest(const double* keys, std::size_t size) {
    std::array<double, kLane> low;
    low.fill(kOut);
    for (std::size_t b = 0; b < size; b += kLane) {
      for (std::uint32_t i = 0; i < kLane; ++i)
        low[i] = keys[b + i] < low[i] ? keys[b + i] : low[i];
    }
    for (std::uint32_t half = kLane / 2; half != 0; half /= 2) {
      for (std::uint32_t i = 0; i < half; ++i)
        low[i] = low[i + half] < low[i] ? low[i + half] : low[i];
    }
    return low[0];
  }

  std::uint32_t row_;
  std::vector<double> keys_;           // [objects], padded; kOut: not in
  std::vector<std::uint64_t> stamps_;  // [objects], padded
  std::vector<std::uint32_t> least_;   // [rows] object or kNone
  std::vector<double> least_keys_;     // [rows] its key or kOut
};

class Decay {
 public:
  // half_life: steps, at least 1. guard: an object used less than `guard` steps ago is a victim only when there is no other;
  // among such objects the least recently used goes. Ties of the score go to the least recently used as well.
  Decay(std::uint32_t objects, std::uint32_t capacity, double half_life, std::uint64_t guard)
      : recency_(objects),
        released_(objects),
        use_(objects),
        free_(capacity),
        half_life_(half_life),
        guard_(guard) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const Group& g, Sink&& sink) {
    begin_step(g.step);
    if (g.size == 1) return access(g, sink);
    MissSet missing;
    std::uint32_t misses = 0;
    for (std::uint32_t r = 0; r < g.size; ++r) {
      const std::uint32_t o = g.objects[r];
      Use& u = use_[o];
      u.score += weight_;
      u.step = g.step;
      if (recency_.contains(o)) {
        // A member is off the list while its group is served: the list then holds the candidates only.
        take_off(o);
        sink.hit(r);
      } else {
        missing.add(r);
        ++misses;
      }
    }
    if (misses != 0) {
      release();
      missing.for_each([&](std::uint32_t r) { sink.admit(r, take_slot()); });
    }
    for (std::uint32_t r = 0; r < g.size; ++r) {
      recency_.push_newest(g.objects[r]);
      use_[g.objects[r]].stamp = ++stamp_;
    }
    return misses;
  }

 private:
  struct Use {
    double score = 0.0;       // S, see the top of the file
    std::uint64_t step = 0;   // of the last use
    std::uint64_t stamp = 0;  // order of the last use; 0 never
  };
  static constexpr double kRebaseHalfLives = 512.0;

  // A group of one: the textbook's access.
  template <class Sink>
  std::uint32_t access(const Group& g, Sink&& sink) {
    const std::uint32_t o = g.objects[0];
    const bool resident = recency_.contains(o);
    if (resident) {
      take_off(o);
      sink.hit(0);
    } else {
      release();
      sink.admit(0, take_slot());
    }
    recency_.push_newest(o);
    use_[o] = {use_[o].score + weight_, g.step, ++stamp_};
    return resident ? 0 : 1;
  }

  void begin_step(std::uint64_t step) {
    if (step == step_ && weight_ != 0.0) return;
    step_ = step;
    const double periods =
        std::floor((static_cast<double>(step) - base_) / half_life_ / kRebaseHalfLives);
    if (periods >= 1.0) rebase(periods);
    weight_ = std::exp2((static_cast<double>(step) - base_) / half_life_);
  }
  void rebase(double periods) {
    base_ += periods * kRebaseHalfLives * half_life_;
    const double factor =
        std::exp2(-kRebaseHalfLives * std::min(periods, 4.0));  // 2^-2048 is zero already
    for (auto& u : use_) u.score *= factor;
    released_.scale(factor);
  }
  bool guarded(std::uint32_t o) const { return step_ - use_[o].step < guard_; }

  // Candidates whose guard has run out may be displaced by their score: the list is in order of use, so they are the next
  // ones on it.
  void release() {
    std::uint32_t o =
        newest_released_ == kNone ? recency_.oldest() : recency_.newer(newest_released_);
    for (; o != kNone && !guarded(o); o = recency_.newer(o)) {
      released_.insert(o, use_[o].score, use_[o].stamp);
      newest_released_ = o;
    }
  }
  void take_off(std::uint32_t o) {
    if (o == newest_released_) newest_released_ = recency_.older(o);
    released_.remove(o);
    recency_.remove(o);
  }

  std::uint32_t take_slot() {
    if (free_ != 0) {
      --free_;
      return kNone;
    }
    // Nothing released: every candidate is guarded, and the least recently used one goes.
    const std::uint32_t victim = newest_released_ == kNone ? recency_.oldest() : released_.least();
    take_off(victim);
    return victim;
  }

  RecencyList recency_;  // residents
  RowMinima released_;   // the unguarded ones among them
  std::uint32_t newest_released_ = kNone;
  std::vector<Use> use_;  // [objects]
  std::uint32_t free_;
  double half_life_;
  std::uint64_t guard_;
  double base_ = 0.0;
  double weight_ = 0.0;  // 2^((step - base) / half_life)
  std::uint64_t step_ = 0;
  std::uint64_t stamp_ = 0;
};

}  // namespace assay::expert_policy
