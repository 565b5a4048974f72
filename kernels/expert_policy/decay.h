// Decayed frequency with a recency guard: the victim is the resident object with the lowest exponentially decayed use count
// that was not used in the last `guard` steps.
//
// Score: s <- s * 2^(-dt / half_life) + 1 on every use, resident or not (a score survives eviction). Scores at one present
// step compare like the forward sums  S = sum over uses u of 2^((step_u - base) / half_life),  which change on use only; so S
// is what is kept, and an aging loop is not needed. `base` moves up by 512 half-lives now and then, which scales every S by
// the exact power 2^-512 and therefore changes no comparison.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/expert_policy/group.h"

namespace assay::expert_policy {

// Resident objects by (key, stamp), smallest first, under keys that only grow between two looks at an object. An entry is
// refreshed when it reaches the top, so a use costs nothing here; every resident object has exactly one live entry, in the
// heap or set aside.
class LazyMinHeap {
 public:
  struct Entry {
    double key;
    std::uint64_t stamp;
    std::uint32_t object;
    bool operator<(const Entry& o) const { return key != o.key ? key < o.key : stamp < o.stamp; }
  };
  LazyMinHeap(std::uint32_t objects, std::uint32_t capacity) : live_(objects, 0) {
    heap_.reserve(2 * std::size_t{capacity} + 64);
  }

  void insert(const Entry& e) {
    if (heap_.size() == heap_.capacity()) drop_dead();
    live_[e.object] = e.stamp;
    heap_.push_back(e);
    sift_up(heap_.size() - 1);
  }
  // The object's entry, wherever it is, is dead from now on.
  void forget(std::uint32_t object) { live_[object] = 0; }
  bool alive(const Entry& e) const { return live_[e.object] == e.stamp; }
  bool empty() const { return heap_.empty(); }
  const Entry& top() const { return heap_[0]; }
  void pop() {
    heap_[0] = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sift_down(0);
  }
  // The top entry with its object's present key, which is not smaller.
  void refresh_top(double key, std::uint64_t stamp) {
    heap_[0].key = key;
    heap_[0].stamp = stamp;
    live_[heap_[0].object] = stamp;
    sift_down(0);
  }
  void scale(double factor) {  // a power of two: the order stays
    for (auto& e : heap_) e.key *= factor;
  }

 private:
  void drop_dead() {
    std::erase_if(heap_, [&](const Entry& e) { return !alive(e); });
    for (std::size_t i = heap_.size() / 2; i-- > 0;) sift_down(i);
  }
  void sift_up(std::size_t i) {
    const Entry e = heap_[i];
    for (; i > 0; i = (i - 1) / 2) {
      if (!(e < heap_[(i - 1) / 2])) break;
      heap_[i] = heap_[(i - 1) / 2];
    }
    heap_[i] = e;
  }
  void sift_down(std::size_t i) {
    const Entry e = heap_[i];
    const std::size_t n = heap_.size();
    for (std::size_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
      if (c + 1 < n && heap_[c + 1] < heap_[c]) ++c;
      if (!(heap_[c] < e)) break;
      heap_[i] = heap_[c];
      i = c;
    }
    heap_[i] = e;
  }
  std::vector<Entry> heap_;
  std::vector<std::uint64_t> live_;  // [objects] stamp of the live entry, 0 none
};

class Decay {
 public:
  // half_life: steps, at least 1. guard: an object used less than `guard` steps ago is a victim only when there is no other;
  // among such objects the least recently used goes. Ties of the score go to the least recently used as well.
  Decay(std::uint32_t objects, std::uint32_t capacity, double half_life, std::uint64_t guard)
      : recency_(objects),
        heap_(objects, capacity),
        use_(objects),
        free_(capacity),
        half_life_(half_life),
        guard_(guard) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const Group& g, Sink&& sink) {
    begin_step(g.step);
    MissSet missing;
    std::uint32_t misses = 0;
    for (std::uint32_t r = 0; r < g.size; ++r) {
      const std::uint32_t o = g.objects[r];
      Use& u = use_[o];
      u.score += weight_;
      u.step = g.step;
      if (recency_.contains(o)) {
        // A member is off the list while its group is served: the list then holds the candidates only.
        recency_.remove(o);
        sink.hit(r);
      } else {
        missing.add(r);
        ++misses;
      }
    }
    if (misses != 0) {
      missing.for_each([&](std::uint32_t r) { sink.admit(r, take_slot()); });
      missing.for_each([&](std::uint32_t r) {
        const std::uint32_t o = g.objects[r];
        heap_.insert({use_[o].score, stamp_ + r + 1, o});
      });
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

  void begin_step(std::uint64_t step) {
    const bool same = step == step_ && weight_ != 0.0;
    if (same && guard_ != 0) return;  // what is set aside is guarded until the step ends
    if (!same) {
      step_ = step;
      const double periods =
          std::floor((static_cast<double>(step) - base_) / half_life_ / kRebaseHalfLives);
      if (periods >= 1.0) rebase(periods);
      weight_ = std::exp2((static_cast<double>(step) - base_) / half_life_);
    }
    for (const auto& e : aside_) {
      if (heap_.alive(e)) heap_.insert(e);
    }
    aside_.clear();
  }
  void rebase(double periods) {
    base_ += periods * kRebaseHalfLives * half_life_;
    const double factor =
        std::exp2(-kRebaseHalfLives * std::min(periods, 4.0));  // 2^-2048 is zero already
    for (auto& u : use_) u.score *= factor;
    for (auto& e : aside_) e.key *= factor;
    heap_.scale(factor);
  }
  bool guarded(std::uint32_t o) const { return step_ - use_[o].step < guard_; }

  std::uint32_t take_slot() {
    if (free_ != 0) {
      --free_;
      return kNone;
    }
    // The least recently used candidate is guarded only when every candidate is.
    std::uint32_t victim = recency_.oldest();
    if (!guarded(victim)) victim = lowest_unguarded();
    heap_.forget(victim);
    recency_.remove(victim);
    return victim;
  }

  // Some candidate is known to be unguarded.
  std::uint32_t lowest_unguarded() {
    for (;;) {
      const LazyMinHeap::Entry e = heap_.top();
      const Use& u = use_[e.object];
      if (!heap_.alive(e)) {
        heap_.pop();
      } else if (guarded(e.object) ||
                 !recency_.contains(e.object)) {  // not contained: a member of this group
        aside_.push_back(e);
        heap_.pop();
      } else if (e.stamp != u.stamp) {
        heap_.refresh_top(u.score, u.stamp);
      } else {
        return e.object;
      }
    }
  }

  RecencyList recency_;
  LazyMinHeap heap_;
  std::vector<Use> use_;  // [objects]
  std::vector<LazyMinHeap::Entry>
      aside_;  // guarded objects met while seeking a victim in this step
  std::uint32_t free_;
  double half_life_;
  std::uint64_t guard_;
  double base_ = 0.0;
  double weight_ = 0.0;  // 2^((step - base) / half_life)
  std::uint64_t step_ = 0;
  std::uint64_t stamp_ = 0;
};

}  // namespace assay::expert_policy
