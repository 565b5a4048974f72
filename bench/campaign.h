// The rules of `assay prove`, apart from running anything: which stored record may stand for a comparison, who is confirmed
// after screening and with how many pairs, and what a confirmation must say before its variant is armed.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "bench/plan.h"
#include "kernels/base/op_info.h"

namespace assay {

// The numerics lanes of an op's cases, "exact" before "fast"; {"any"} for an op whose shapes have none, empty for an op
// without cases. The keys of a proven set.
std::vector<std::string> lanes_of(const OpInfo& op);

// What a stored record must agree with, beside the plan, to be used instead of a new run.
struct Standing {
  std::string card;
  std::string commit;
  std::string tree_sha256;
  std::string exe_sha256;
  bool scratch = false;
  std::string backend = "host";
};
Standing standing_now(bool scratch, const DeviceInfo& device = host_device());
// An A/B record of this very plan, card, build and sources. Its verdict plays no part: a finished comparison is never
// run again because of what it found, and that is what keeps a resumed campaign unbiased.
bool stands_for(const nlohmann::json& record, const Plan& plan, const Standing& now);
// The earliest of them, so that a repetition by hand cannot replace the first answer; null pointer when there is none.
const nlohmann::json* first_standing(const std::vector<nlohmann::json>& records,
                                     const Plan& plan,
                                     const Standing& now);
// The latest passing or failing parity record of a variant by this very binary and sources; null pointer when there is none.
const nlohmann::json* standing_parity(const std::vector<nlohmann::json>& records,
                                      const std::string& op,
                                      const std::string& variant,
                                      const Standing& now);

// A screened variant of one lane. Screening ranks and nothing else: no number of it enters a claim.
struct Screened {
  std::string variant;
  bool sound = false;     // neither REJECT nor INVALID
  double estimate = 0.0;  // log speed-up
};
// Indices of those worth a confirmation, best first, at most `most`: sound and ahead of stock.
std::vector<std::size_t> candidates(const std::vector<Screened>& screened, std::size_t most);

// The screening's plan made that of a confirmation in a family of so many, with pairs and bar from this pool of A/A
// differences: the fewest of 12, 16 and 24 pairs (or `asked`, unless 0) whose planned MDE is under the bar. On a machine too
// noisy for that the bar rises, to 1.05 and then 1.2, and with it what an estimate must reach; nothing when even that is
// not enough. A pool too small to tell counts as quiet.
std::optional<Plan> confirmation_plan(const Plan& screen,
                                      int family_size,
                                      const std::vector<double>& aa_pool,
                                      int asked);

// Why the confirmed variant of an A/B record is not to be armed; empty when it is: a claim, every gated tier PASS, and an
// estimate of at least the plan's bar.
std::string not_armed_because(const nlohmann::json& record);

// Wall seconds that a stored sitting took, to the second.
double sitting_seconds(const nlohmann::json& record);

}  // namespace assay
