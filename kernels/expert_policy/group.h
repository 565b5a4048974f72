// What an on-line expert-cache policy sees and says: one group at a time, the experts that one router chose for one token.
//
// Rules shared by every policy (docs/replay.md, "Group mode"): all members are looked up first; scores are updated before
// victims are sought; a free slot is filled by any policy; then the missing members are admitted in rank order, and no member
// of the group may be evicted by its own group; last, all members are stamped in rank order (the last one most recent).
// A group of one object is an access of the textbook's flat sequence.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace assay::expert_policy {

inline constexpr std::uint32_t kNone = 0xFFFFFFFFU;

struct Group {
  const std::uint32_t* objects = nullptr;  // [size], distinct, by falling gate weight
  const float* weights = nullptr;          // [size] gate weights, or null when unknown
  std::uint32_t size = 0;                  // 0 (layer without experts) to the cache's capacity
  std::uint32_t layer = 0;
  std::uint64_t step = 0;  // never falls from call to call
};

// A policy reports each member once, in two passes of its own choosing, through a sink. This one drops the reports.
struct NoSink {
  void hit(std::uint32_t /*rank*/) {}
  void admit(std::uint32_t /*rank*/, std::uint32_t /*victim: object, or kNone for a free slot*/) {}
  void refuse(std::uint32_t /*rank*/) {}  // a miss that was not admitted
};

// Ranks of one group that missed. A group has at most 255 members (top-k of a trace is one byte).
class MissSet {
 public:
  void add(std::uint32_t rank) { words_[rank / 64] |= std::uint64_t{1} << (rank % 64); }
  // Calls f(rank) in rank order.
  template <class F>
  void for_each(F&& f) const {
    for (std::uint32_t w = 0; w < 4; ++w) {
      for (std::uint64_t bits = words_[w]; bits != 0; bits &= bits - 1)
        f(w * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
  }

 private:
  std::uint64_t words_[4] = {};
};

// Objects by time of last use, as a doubly linked list over object numbers: every operation is O(1) and allocates nothing.
class RecencyList {
 public:
  explicit RecencyList(std::uint32_t objects)
      : nodes_(std::size_t{objects} + 1, Node{kNone, kNone}), sentinel_(objects) {
    nodes_[sentinel_] = {sentinel_, sentinel_};
  }
  bool contains(std::uint32_t o) const { return nodes_[o].older != kNone; }
  // The least recently used object, or kNone.
  std::uint32_t oldest() const {
    return nodes_[sentinel_].newer == sentinel_ ? kNone : nodes_[sentinel_].newer;
  }
  // The next more recent object, or kNone after the last.
  std::uint32_t newer(std::uint32_t o) const {
    return nodes_[o].newer == sentinel_ ? kNone : nodes_[o].newer;
  }
  // The next less recent object, or kNone before the first.
  std::uint32_t older(std::uint32_t o) const {
    return nodes_[o].older == sentinel_ ? kNone : nodes_[o].older;
  }
  void remove(std::uint32_t o) {
    const Node n = nodes_[o];
    nodes_[n.newer].older = n.older;
    nodes_[n.older].newer = n.newer;
    nodes_[o].older = kNone;
  }
  void push_newest(std::uint32_t o) {
    const std::uint32_t was = nodes_[sentinel_].older;
    nodes_[o] = {sentinel_, was};
    nodes_[was].newer = o;
    nodes_[sentinel_].older = o;
  }

 private:
  struct Node {
    std::uint32_t newer;  // the sentinel's: the oldest object
    std::uint32_t older;  // the sentinel's: the newest object; kNone: not in the list
  };
  std::vector<Node> nodes_;
  std::uint32_t sentinel_;
};

}  // namespace assay::expert_policy
