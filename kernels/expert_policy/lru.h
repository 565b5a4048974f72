// Least recently used, with or without second-miss admission.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/expert_policy/group.h"

namespace assay::expert_policy {

class Lru {
 public:
  // Objects are 0 .. objects - 1; capacity >= the largest group.
  Lru(std::uint32_t objects, std::uint32_t capacity) : recency_(objects), free_(capacity) {}

  // Returns the number of misses.
  template <class Sink>
  std::uint32_t lookup_and_admit(const Group& g, Sink&& sink) {
    if (g.size == 1) return access(g.objects[0], sink);
    // Hit members leave the list, so that its oldest entry is always a legal victim.
    MissSet missing;
    std::uint32_t misses = 0;
    for (std::uint32_t r = 0; r < g.size; ++r) {
      if (recency_.contains(g.objects[r])) {
        recency_.remove(g.objects[r]);
        sink.hit(r);
      } else {
        missing.add(r);
        ++misses;
      }
    }
    if (misses != 0) missing.for_each([&](std::uint32_t r) { sink.admit(r, take_slot()); });
    for (std::uint32_t r = 0; r < g.size; ++r) recency_.push_newest(g.objects[r]);
    return misses;
  }

 private:
  template <class Sink>
  std::uint32_t access(std::uint32_t object, Sink&& sink) {
    const bool resident = recency_.contains(object);
    if (resident) {
      recency_.remove(object);
      sink.hit(0);
    } else {
      sink.admit(0, take_slot());
    }
    recency_.push_newest(object);
    return resident ? 0 : 1;
  }
  std::uint32_t take_slot() {
    if (free_ != 0) {
      --free_;
      return kNone;
    }
    const std::uint32_t victim = recency_.oldest();
    recency_.remove(victim);
    return victim;
  }

  RecencyList recency_;
  std::uint32_t free_;
};

// LRU that admits an object only when its last miss is at most `window` steps old; free slots are filled regardless.
class SecondMiss {
 public:
  SecondMiss(std::uint32_t objects, std::uint32_t capacity, std::uint64_t window)
      : recency_(objects), last_miss_(objects, kNever), free_(capacity), window_(window) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const Group& g, Sink&& sink) {
    MissSet missing;
    MissSet stamped;
    std::uint32_t misses = 0;
    for (std::uint32_t r = 0; r < g.size; ++r) {
      if (recency_.contains(g.objects[r])) {
        recency_.remove(g.objects[r]);
        stamped.add(r);
        sink.hit(r);
      } else {
        missing.add(r);
        ++misses;
      }
    }
    missing.for_each([&](std::uint32_t r) {
      std::uint64_t& last = last_miss_[g.objects[r]];
      const bool again = last != kNever && g.step - last <= window_;
      last = g.step;
      if (free_ != 0) {
        --free_;
        sink.admit(r, kNone);
      } else if (again) {
        const std::uint32_t victim = recency_.oldest();
        recency_.remove(victim);
        sink.admit(r, victim);
      } else {
        sink.refuse(r);
        return;
      }
      stamped.add(r);
    });
    stamped.for_each([&](std::uint32_t r) { recency_.push_newest(g.objects[r]); });
    return misses;
  }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  RecencyList recency_;
  std::vector<std::uint64_t> last_miss_;  // [objects] step, or kNever
  std::uint32_t free_;
  std::uint64_t window_;
};

}  // namespace assay::expert_policy
