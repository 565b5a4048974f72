#include <charconv>

#include "kernels/base/error.h"
#include "kernels/expert_policy/successor.h"
#include "replay/policy.h"

namespace assay::replay {
namespace {

using expert_policy::Successor;
using expert_policy::SuccessorRules;

// Rules as the fields of a policy name, in this order.
struct Field {
  float low, high;
  float& (*of)(SuccessorRules&);
};
const Field kFields[] = {{0.0F, 1.0F, [](SuccessorRules& r) -> float& { return r.discount; }},
                         {0.5F, 2.0F, [](SuccessorRules& r) -> float& { return r.carry; }},
                         {0.0F, 1.0F, [](SuccessorRules& r) -> float& { return r.rate; }},
                         {0.0F, 1.0F, [](SuccessorRules& r) -> float& { return r.rank_step; }},
                         {0.0F, 1.0F, [](SuccessorRules& r) -> float& { return r.share[0]; }},
                         {0.0F, 1.0F, [](SuccessorRules& r) -> float& { return r.share[1]; }},
                         {0.0F, 1.0F, [](SuccessorRules& r) -> float& { return r.share[2]; }},
                         {0.0F, 1.0F, [](SuccessorRules& r) -> float& { return r.share[3]; }}};

std::optional<PolicyChoice> parse(const std::vector<std::string>& f) {
  if (f[0] != "successor" || (f.size() != 1 && f.size() != 1 + std::size(kFields)))
    return std::nullopt;
  SuccessorRules rules = expert_policy::kSuccessorRules;
  std::string name = "successor";
  for (std::size_t i = 1; i < f.size(); ++i) {
    const Field& field = kFields[i - 1];
    float& value = field.of(rules);
    const auto r = std::from_chars(f[i].data(), f[i].data() + f[i].size(), value);
    if (r.ec != std::errc{} || r.ptr != f[i].data() + f[i].size() ||
        !(value >= field.low && value <= field.high)) {
      throw UserError("policy 'successor': parameter " + std::to_string(i) + " '" + f[i] +
                      "' must be a number in its range (docs/replay.md)");
    }
    name += ":" + f[i];
  }
  return PolicyChoice{
      .name = name, .make = [=](const Setup& s) {
        if (s.experts > Successor::kMaxExperts) {
          throw UserError("policy 'successor' learns who follows whom and keeps a square of " +
                          std::to_string(s.experts) + " experts a layer: at most " +
                          std::to_string(Successor::kMaxExperts));
        }
        return simulate(
            s, [&](std::uint32_t) { return Successor(s.capacity, s.layers, s.experts, rules); });
      }};
}

}  // namespace

extern const PolicyEntry policy_successor;
const PolicyEntry policy_successor{
    "successor successor:D:C:R:W:A:B:E:F",
    "lowest expected use goes, learned on line from who follows whom",
    parse};

}  // namespace assay::replay
