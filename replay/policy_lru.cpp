#include "kernels/expert_policy/lru.h"
#include "replay/policy.h"

namespace assay::replay {
namespace {

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f[0] != "lru" || f.size() != 1) return std::nullopt;
  return PolicyChoice{.name = "lru", .make = [](const Setup& s) {
                        return simulate(s, [&](std::uint32_t) {
                          return expert_policy::Lru(s.objects, s.capacity);
                        });
                      }};
}

}  // namespace

extern const PolicyEntry policy_lru;
const PolicyEntry policy_lru{"lru", "least recently used goes", parse};

}  // namespace assay::replay
