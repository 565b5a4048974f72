// A plan: everything that is decided before the first run. Its hash is in every record, and the order of the runs is
// derived from that hash, so that nobody can shop for an order.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace assay {

struct PlanTier {
  std::string id;  // micro lane: a case of the op
  std::string endpoint = "micro";
  double weight = 1.0;
  bool gated = true;
};

// Extension beyond `pairs`, allowed only when the plan names it: the e-process of bench/stats.h.
struct PlanExtension {
  double s0 = 0.0;  // frozen A/A sd of the pair ratio, log scale
  int max_pairs = 24;
};

struct Plan {
  std::string op;  // arm A and B differ in this op's switch and in nothing else
  std::string a = "stock";
  std::string b;
  std::string family;   // default: the op
  int family_size = 1;  // members confirmed together; a claim must hold at alpha / family_size
  std::string lane = "micro";
  std::string backend = "host";
  std::string base = "stock";            // profile that both arms share
  std::string protocol = "signed-rank";  // or "abg4"
  std::string stage = "confirm";         // "screen" makes no claim, "smoke" is 4 pairs
  std::string primary = "micro";         // endpoint that the verdict is about
  double alpha = 0.05;
  int pairs = 12;  // even, 4..60
  int burn_in_pairs = 1;
  int aa_every = 4;    // one A/A pair per so many A/B pairs
  double bar = 1.015;  // smallest speed-up of interest; planned MDE must be below it
  double tier_min = 0.98;
  std::vector<PlanTier> tiers;
  int blocks = 30;      // timed blocks a start and tier
  int block_us = 2000;  // least work in a block
  int threads = 1;
  std::string regime = "hot";  // one buffer set, weights as warm as the caches keep them
  std::vector<std::string> discard_codes{"HOST_SUSPENDED"};
  bool underpowered = false;
  std::optional<PlanExtension> extension;
  // Share of its calls that arm B repeats inside the clock: a slowdown of known size, to test the harness with. Both arms run
  // one variant then, and 1 / injected is a whole number.
  double injected = 0.0;
};

nlohmann::json plan_json(const Plan& plan);
// Validates against results/schema/plan.schema.json and the rules above. InputError naming `name` and the key.
Plan plan_from_json(const nlohmann::json& document, const std::string& name);
// UserError naming the flag-like field and the rule.
void check_plan(const Plan& plan);
std::string plan_sha256(const Plan& plan);
// From the hash alone.
std::uint64_t order_seed(const std::string& plan_hash);

enum class PairKind : std::uint8_t { kBurnIn, kAb, kAa };
const char* to_string(PairKind kind);  // "burn_in", "ab", "aa"
struct ScheduledPair {
  int pair = 0;
  PairKind kind = PairKind::kAb;
  bool a_first = true;           // in an A/A pair: the arm coded as A
  std::uint64_t block_seed = 0;  // ABBA/BAAB choices inside the pair
};
struct Schedule {
  char code_a = 'X';  // which code the runs of arm A carry; the statistics see codes only
  std::vector<ScheduledPair> pairs;
};
Schedule make_schedule(const Plan& plan);
// The next pairs after the planned ones, for an extension: one of each order.
std::vector<ScheduledPair> extension_pairs(const Plan& plan, int already);

// Which arm (true: A) runs each of the 2 * blocks blocks of one tier: random ABBA and BAAB, the first by a_first.
std::vector<bool> block_order(int blocks, bool a_first, std::uint64_t seed);

}  // namespace assay
