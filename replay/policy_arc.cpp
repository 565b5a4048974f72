// ARC (Megiddo and Modha, FAST 2003): once-used and more-often-used objects in two recency lists, each with a ghost list, and a
// target size for the first that follows ghost hits. The target is a real number; its step max(1, ratio of the ghost sizes) is
// taken before the ghost is removed.
// In a group the hits move first, then misses are served in rank order; REPLACE takes the other list when every object of its
// own is a member of the present group; last, members are stamped in rank order inside their lists.
#include <algorithm>

#include "replay/policy.h"
#include "replay/serve_hits.h"

namespace assay::replay {
namespace {

using expert_policy::RecencyList;

class Arc {
 public:
  Arc(std::uint32_t objects, std::uint32_t capacity)
      : lists_{RecencyList(objects),
               RecencyList(objects),
               RecencyList(objects),
               RecencyList(objects)},
        where_(objects, kNowhere),
        member_(objects, 0),
        capacity_(capacity) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const OracleGroup& g, Sink&& sink) {
    ++group_;
    const Missing missing = serve_hits(g, sink, [&](std::uint32_t o) {
      member_[o] = group_;
      if (where_[o] != kT1 && where_[o] != kT2) return false;
      move(o, kT2);
      return true;
    });
    missing.ranks.for_each([&](std::uint32_t r) { sink.admit(r, serve(g.objects[r])); });
    if (missing.count != 0 && g.size > 1) {
      for (std::uint32_t r = 0; r < g.size; ++r) move(g.objects[r], where_[g.objects[r]]);
    }
    return missing.count;
  }

 private:
  enum List : std::uint8_t { kT1, kT2, kB1, kB2, kNowhere };

  void take(std::uint32_t o) {
    lists_[where_[o]].remove(o);
    --size_[where_[o]];
    where_[o] = kNowhere;
  }
  void move(std::uint32_t o, List to) {
    if (where_[o] != kNowhere) take(o);
    lists_[to].push_newest(o);
    ++size_[to];
    where_[o] = to;
  }
  void drop_oldest(List list) { take(lists_[list].oldest()); }
  // Members are the most recent of their list, so the oldest tells whether there is a candidate.
  bool has_candidate(List list) const {
    return size_[list] != 0 && member_[lists_[list].oldest()] != group_;
  }

  std::uint32_t replace(bool in_b2) {
    const double t1 = size_[kT1];
    bool first = size_[kT1] != 0 && (t1 > target_ || (in_b2 && t1 == target_));
    if (!has_candidate(first ? kT1 : kT2)) first = !first;
    const std::uint32_t victim = lists_[first ? kT1 : kT2].oldest();
    move(victim, first ? kB1 : kB2);
    return victim;
  }

  // Returns the victim, or kNone.
  std::uint32_t serve(std::uint32_t o) {
    const bool full = size_[kT1] + size_[kT2] == capacity_;
    std::uint32_t victim = kNone;
    const double b1 = size_[kB1];
    const double b2 = size_[kB2];
    if (where_[o] == kB1) {
      target_ = std::min<double>(capacity_, target_ + std::max(1.0, b2 / b1));
      if (full) victim = replace(false);
      move(o, kT2);
    } else if (where_[o] == kB2) {
      target_ = std::max(0.0, target_ - std::max(1.0, b1 / b2));
      if (full) victim = replace(true);
      move(o, kT2);
    } else {
      if (size_[kT1] + size_[kB1] == capacity_) {
        if (size_[kT1] < capacity_) {
          drop_oldest(kB1);
          if (full) victim = replace(false);
        } else {
          victim = lists_[kT1].oldest();
          take(victim);
        }
      } else if (full) {
        if (size_[kT1] + size_[kT2] + size_[kB1] + size_[kB2] == 2 * capacity_) drop_oldest(kB2);
        victim = replace(false);
      }
      move(o, kT1);
    }
    return victim;
  }

  RecencyList lists_[4];
  std::uint32_t size_[4] = {};
  std::vector<List> where_;            // [objects]
  std::vector<std::uint64_t> member_;  // [objects] the last group that named it
  std::uint64_t group_ = 0;
  std::uint32_t capacity_;
  double target_ = 0.0;  // of T1
};

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f[0] != "arc" || f.size() != 1) return std::nullopt;
  return PolicyChoice{.name = "arc", .make = [](const Setup& s) {
                        return simulate(s,
                                        [&](std::uint32_t) { return Arc(s.objects, s.capacity); });
                      }};
}

}  // namespace

extern const PolicyEntry policy_arc;
const PolicyEntry policy_arc{"arc", "two recency lists whose split follows ghost hits", parse};

}  // namespace assay::replay
