#include "kernels/expert_policy/lru.h"
#include "replay/policy.h"

namespace assay::replay {
namespace {

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f[0] != "second-miss" || f.size() != 2) return std::nullopt;
  const std::uint64_t window = parse_parameter(f, 1, 0, 1000000000000ULL);
  return PolicyChoice{.name = "second-miss:" + f[1], .make = [=](const Setup& s) {
                        return simulate(s, [&](std::uint32_t) {
                          return expert_policy::SecondMiss(s.objects, s.capacity, window);
                        });
                      }};
}

}  // namespace

extern const PolicyEntry policy_second_miss;
const PolicyEntry policy_second_miss{
    "second-miss:W",
    "LRU that admits an object only if it missed in the last W steps already",
    parse};

}  // namespace assay::replay
