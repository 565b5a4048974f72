// The three policies over one insertion-ordered queue: FIFO, CLOCK (one reference bit) and SIEVE.
#include "replay/policy.h"
#include "replay/serve_hits.h"

namespace assay::replay {
namespace {

using expert_policy::RecencyList;

enum class Kind : std::uint8_t { kFifo, kClock, kSieve };

// Queue rules, oldest insertion first. A member of the present group is stepped over and keeps its place and bit.
// FIFO: the oldest goes.
// CLOCK: the hand is the queue's old end; an object with its bit set loses the bit and moves to the new end.
// SIEVE: the hand keeps its place between evictions and moves from old to new, wrapping; an object with its bit set loses the
//        bit and stays where it is; the hand rests on the next newer one after an eviction. (Zhang et al., NSDI 2024)
class Queue {
 public:
  Queue(Kind kind, std::uint32_t objects, std::uint32_t capacity)
      : kind_(kind), order_(objects), visited_(objects, 0), member_(objects, 0), free_(capacity) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const OracleGroup& g, Sink&& sink) {
    ++group_;
    const Missing missing = serve_hits(g, sink, [&](std::uint32_t o) {
      member_[o] = group_;
      if (!order_.contains(o)) return false;
      visited_[o] = 1;
      return true;
    });
    if (missing.count == 0) return 0;
    missing.ranks.for_each([&](std::uint32_t r) {
      std::uint32_t victim = kNone;
      if (free_ != 0) {
        --free_;
      } else {
        victim = kind_ == Kind::kSieve ? sieve_victim() : queue_victim();
      }
      order_.push_newest(g.objects[r]);
      visited_[g.objects[r]] = 0;
      sink.admit(r, victim);
    });
    return missing.count;
  }

 private:
  bool pinned(std::uint32_t o) const { return member_[o] == group_; }

  std::uint32_t queue_victim() {
    for (std::uint32_t o = order_.oldest();;) {
      const std::uint32_t newer = order_.newer(o);
      if (pinned(o)) {
        o = newer;
      } else if (kind_ == Kind::kClock && visited_[o] != 0) {
        visited_[o] = 0;
        order_.remove(o);
        order_.push_newest(o);
        o = newer != kNone ? newer : order_.oldest();
      } else {
        order_.remove(o);
        return o;
      }
      if (o == kNone) o = order_.oldest();
    }
  }

  std::uint32_t sieve_victim() {
    for (std::uint32_t o = hand_ != kNone ? hand_ : order_.oldest();;) {
      const std::uint32_t newer = order_.newer(o);
      if (!pinned(o) && visited_[o] == 0) {
        order_.remove(o);
        hand_ = newer;  // kNone: the next search begins at the old end
        return o;
      }
      if (!pinned(o)) visited_[o] = 0;
      o = newer != kNone ? newer : order_.oldest();
    }
  }

  Kind kind_;
  RecencyList order_;                  // by insertion
  std::vector<std::uint8_t> visited_;  // [objects]
  std::vector<std::uint64_t> member_;  // [objects] the last group that named it
  std::uint64_t group_ = 0;
  std::uint32_t free_;
  std::uint32_t hand_ = kNone;
};

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f.size() != 1) return std::nullopt;
  Kind kind = Kind::kFifo;
  if (f[0] == "clock") {
    kind = Kind::kClock;
  } else if (f[0] == "sieve") {
    kind = Kind::kSieve;
  } else if (f[0] != "fifo") {
    return std::nullopt;
  }
  return PolicyChoice{.name = f[0], .make = [=](const Setup& s) {
                        return simulate(
                            s, [&](std::uint32_t) { return Queue(kind, s.objects, s.capacity); });
                      }};
}

}  // namespace

extern const PolicyEntry policy_fifo;
const PolicyEntry policy_fifo{
    "fifo clock sieve",
    "first in, first out; with a reference bit; with a bit and a resting hand",
    parse};

}  // namespace assay::replay
