// Least frequently used. A count lives while its object is resident (an eviction forgets it); among the objects of the lowest
// count the one that has been longest at that count goes.
#include "replay/policy.h"
#include "replay/serve_hits.h"

namespace assay::replay {
namespace {

// Objects in buckets of equal count, buckets in a list by rising count; inside a bucket by time of arrival.
class Lfu {
 public:
  Lfu(std::uint32_t objects, std::uint32_t capacity)
      : nodes_(objects), member_(objects, 0), free_(capacity) {
    buckets_.resize(std::size_t{capacity} + 2);
    for (std::uint32_t b = 1; b < buckets_.size(); ++b) spare_.push_back(b);
    buckets_[0] = {0, 0, 0, kNone, kNone};  // the list's end on both sides
  }

  template <class Sink>
  std::uint32_t lookup_and_admit(const OracleGroup& g, Sink&& sink) {
    ++group_;
    const Missing missing = serve_hits(g, sink, [&](std::uint32_t o) {
      member_[o] = group_;
      if (nodes_[o].bucket == 0) return false;
      raise(o);
      return true;
    });
    missing.ranks.for_each([&](std::uint32_t r) {
      std::uint32_t victim = kNone;
      if (free_ != 0) {
        --free_;
      } else {
        victim = find_victim();
        unlink(victim);
      }
      insert_after(0, 1, g.objects[r]);
      sink.admit(r, victim);
    });
    return missing.count;
  }

 private:
  struct Node {
    std::uint32_t bucket = 0;  // 0: not resident
    std::uint32_t older = kNone;
    std::uint32_t newer = kNone;
  };
  struct Bucket {
    std::uint64_t count = 0;
    std::uint32_t lower = 0;
    std::uint32_t higher = 0;
    std::uint32_t oldest = kNone;
    std::uint32_t newest = kNone;
  };

  // Puts o into the bucket of `count`, which is the one after bucket `lower` or is made there.
  void insert_after(std::uint32_t lower, std::uint64_t count, std::uint32_t o) {
    std::uint32_t b = buckets_[lower].higher;
    if (b == 0 || buckets_[b].count != count) {
      const std::uint32_t higher = b;
      b = spare_.back();
      spare_.pop_back();
      buckets_[b] = {count, lower, higher, kNone, kNone};
      buckets_[lower].higher = b;
      buckets_[higher].lower = b;
    }
    Bucket& bucket = buckets_[b];
    nodes_[o] = {b, bucket.newest, kNone};
    (bucket.newest != kNone ? nodes_[bucket.newest].newer : bucket.oldest) = o;
    bucket.newest = o;
  }
  void unlink(std::uint32_t o) {
    const Node n = nodes_[o];
    Bucket& b = buckets_[n.bucket];
    (n.older != kNone ? nodes_[n.older].newer : b.oldest) = n.newer;
    (n.newer != kNone ? nodes_[n.newer].older : b.newest) = n.older;
    nodes_[o] = {};
    if (b.oldest == kNone) {
      buckets_[b.lower].higher = b.higher;
      buckets_[b.higher].lower = b.lower;
      spare_.push_back(n.bucket);
    }
  }
  void raise(std::uint32_t o) {
    const std::uint32_t b = nodes_[o].bucket;
    const std::uint64_t count = buckets_[b].count;
    const std::uint32_t lower = buckets_[b].lower;
    unlink(o);
    insert_after(buckets_[lower].higher == b ? b : lower, count + 1, o);
  }
  std::uint32_t find_victim() const {
    for (std::uint32_t b = buckets_[0].higher;; b = buckets_[b].higher) {
      for (std::uint32_t o = buckets_[b].oldest; o != kNone; o = nodes_[o].newer) {
        if (member_[o] != group_) return o;
      }
    }
  }

  std::vector<Node> nodes_;  // [objects]
  std::vector<Bucket> buckets_;
  std::vector<std::uint32_t> spare_;
  std::vector<std::uint64_t> member_;  // [objects] the last group that named it
  std::uint64_t group_ = 0;
  std::uint32_t free_;
};

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f[0] != "lfu" || f.size() != 1) return std::nullopt;
  return PolicyChoice{.name = "lfu", .make = [](const Setup& s) {
                        return simulate(s,
                                        [&](std::uint32_t) { return Lfu(s.objects, s.capacity); });
                      }};
}

}  // namespace

extern const PolicyEntry policy_lfu;
const PolicyEntry policy_lfu{
    "lfu",
    "least frequently used goes; counts end with residency, ties by time at that count",
    parse};

}  // namespace assay::replay
