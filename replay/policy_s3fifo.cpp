// S3-FIFO (Yang et al., SOSP 2023): a small queue filters one-hit objects before the main queue; a ghost remembers them.
//   small = max(1, floor(10 % of the capacity)), main = the rest, ghost as long as main;
//   a hit raises the object's counter, at most to 3;
//   a miss found in the ghost leaves it and enters main, any other miss enters small; counters start at 0;
//   a victim is sought when the cache is full: in main when main is above its size or small has none, else in small;
//   small: the oldest moves to main with its counter cleared when the counter is >= 2, else it goes and is remembered;
//   main: the oldest is reinserted with its counter lowered when the counter is >= 1, else it goes.
// A member of the present group is stepped over and keeps its place and counter.
#include "replay/policy.h"
#include "replay/serve_hits.h"

namespace assay::replay {
namespace {

using expert_policy::RecencyList;

class S3Fifo {
 public:
  S3Fifo(std::uint32_t objects, std::uint32_t capacity)
      : small_(objects),
        main_(objects),
        ghost_(objects),
        count_(objects, 0),
        member_(objects, 0),
        free_(capacity),
        main_capacity_(capacity - std::max<std::uint32_t>(1, capacity / 10)) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const OracleGroup& g, Sink&& sink) {
    ++group_;
    const Missing missing = serve_hits(g, sink, [&](std::uint32_t o) {
      member_[o] = group_;
      if (!small_.contains(o) && !main_.contains(o)) return false;
      if (count_[o] < 3) ++count_[o];
      return true;
    });
    missing.ranks.for_each([&](std::uint32_t r) {
      const std::uint32_t o = g.objects[r];
      const bool remembered = ghost_.contains(o);
      if (remembered) {
        ghost_.remove(o);
        --ghost_size_;
      }
      std::uint32_t victim = kNone;
      if (free_ != 0) {
        --free_;
      } else {
        victim = find_victim();
      }
      count_[o] = 0;
      if (remembered) {
        main_.push_newest(o);
        ++main_size_;
      } else {
        small_.push_newest(o);
      }
      sink.admit(r, victim);
    });
    return missing.count;
  }

 private:
  std::uint32_t oldest_candidate(const RecencyList& list) const {
    std::uint32_t o = list.oldest();
    while (o != kNone && member_[o] == group_) o = list.newer(o);
    return o;
  }
  std::uint32_t find_victim() {
    for (;;) {
      const std::uint32_t small = oldest_candidate(small_);
      const std::uint32_t main =
          main_size_ > main_capacity_ || small == kNone ? oldest_candidate(main_) : kNone;
      if (main != kNone) {
        main_.remove(main);
        if (count_[main] == 0) {
          --main_size_;
          return main;
        }
        --count_[main];
        main_.push_newest(main);
      } else {
        small_.remove(small);
        if (count_[small] < 2) {
          remember(small);
          return small;
        }
        count_[small] = 0;
        main_.push_newest(small);
        ++main_size_;
      }
    }
  }
  void remember(std::uint32_t o) {
    if (main_capacity_ == 0) return;
    if (ghost_size_ == main_capacity_) {
      ghost_.remove(ghost_.oldest());
      --ghost_size_;
    }
    ghost_.push_newest(o);
    ++ghost_size_;
  }

  RecencyList small_, main_, ghost_;   // by insertion
  std::vector<std::uint8_t> count_;    // [objects] 0..3
  std::vector<std::uint64_t> member_;  // [objects] the last group that named it
  std::uint64_t group_ = 0;
  std::uint32_t free_;
  std::uint32_t main_capacity_;
  std::uint32_t main_size_ = 0;
  std::uint32_t ghost_size_ = 0;
};

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f[0] != "s3fifo" || f.size() != 1) return std::nullopt;
  return PolicyChoice{.name = "s3fifo", .make = [](const Setup& s) {
                        return simulate(
                            s, [&](std::uint32_t) { return S3Fifo(s.objects, s.capacity); });
                      }};
}

}  // namespace

extern const PolicyEntry policy_s3fifo;
const PolicyEntry policy_s3fifo{
    "s3fifo", "a small queue of 10 % filters what the main queue keeps", parse};

}  // namespace assay::replay
