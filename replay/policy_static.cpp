// A pinned set: the most used objects stay, everything else misses. `static-hindsight` counts the very steps it is scored on;
// `static-train` counts the train split of the same inputs.
#include <algorithm>
#include <numeric>

#include "replay/policy.h"

namespace assay::replay {
namespace {

class Pinned {
 public:
  explicit Pinned(std::vector<std::uint8_t> resident) : resident_(std::move(resident)) {}

  template <class Sink>
  std::uint32_t lookup_and_admit(const OracleGroup& g, Sink&& sink) {
    std::uint32_t misses = 0;
    for (std::uint32_t r = 0; r < g.size; ++r) {
      if (resident_[g.objects[r]] != 0) {
        sink.hit(r);
      } else {
        ++misses;
        sink.refuse(r);
      }
    }
    return misses;
  }

 private:
  std::vector<std::uint8_t> resident_;  // [objects]
};

// Uses of every object of the sequence.
std::vector<std::uint64_t> count_uses(Sequence& sequence, std::uint32_t objects) {
  std::vector<std::uint64_t> uses(objects, 0);
  Block b;
  for (std::uint64_t first = 0; first < sequence.steps(); first += b.steps) {
    sequence.decode(first, sequence.block_steps(), false, b);
    for (const auto o : b.objects) {
      if (o < objects) ++uses[o];
    }
  }
  return uses;
}

std::unique_ptr<Simulator> make(const Setup& s, Sequence& counted) {
  const auto uses = count_uses(counted, s.objects * s.caches);
  return simulate(s, [&](std::uint32_t cache) {
    const auto* u = uses.data() + std::size_t{cache} * s.objects;
    std::vector<std::uint32_t> order(s.objects);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(
        order.begin(), order.end(), [u](std::uint32_t a, std::uint32_t b) { return u[a] > u[b]; });
    std::vector<std::uint8_t> resident(s.objects, 0);
    for (std::uint32_t i = 0; i < std::min(s.capacity, s.objects); ++i) resident[order[i]] = 1;
    return Pinned(std::move(resident));
  });
}

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f.size() != 1) return std::nullopt;
  if (f[0] == "static-hindsight") {
    return PolicyChoice{.name = f[0], .in_sample = true, .make = [](const Setup& s) {
                          return make(s, *s.sequence);
                        }};
  }
  if (f[0] == "static-train") {
    return PolicyChoice{
        .name = f[0], .train = true, .make = [](const Setup& s) { return make(s, *s.train); }};
  }
  return std::nullopt;
}

}  // namespace

extern const PolicyEntry policy_static;
const PolicyEntry policy_static{
    "static-hindsight static-train",
    "a pinned set of the most used objects, counted on the scored steps or on the train split",
    parse};

}  // namespace assay::replay
