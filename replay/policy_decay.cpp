#include "kernels/expert_policy/decay.h"
#include "replay/policy.h"

namespace assay::replay {
namespace {

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  std::uint64_t half_life = 32;
  std::uint64_t guard = 2;
  std::string name = "decay32";
  if (f[0] == "decay" && f.size() == 3) {
    half_life = parse_parameter(f, 1, 1, 1000000000);
    guard = parse_parameter(f, 2, 0, 1000000000);
    name = "decay:" + f[1] + ":" + f[2];
  } else if (f[0] != "decay32" || f.size() != 1) {
    return std::nullopt;
  }
  return PolicyChoice{.name = name, .make = [=](const Setup& s) {
                        return simulate(s, [&](std::uint32_t) {
                          return expert_policy::Decay(
                              s.objects, s.capacity, static_cast<double>(half_life), guard);
                        });
                      }};
}

}  // namespace

extern const PolicyEntry policy_decay;
const PolicyEntry policy_decay{"decay:H:G decay32",
                               "lowest use count with half-life H steps goes, unless used less "
                               "than G steps ago (decay32: H 32, G 2)",
                               parse};

}  // namespace assay::replay
