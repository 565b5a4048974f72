#include "bench/plan.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "bench/stats.h"
#include "kernels/base/error.h"
#include "kernels/base/json_schema.h"
#include "kernels/base/record.h"
#include "kernels/base/rng.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

using nlohmann::json;

std::uint64_t seed_for(const std::string& text) {
  return std::stoull(sha256_hex(text).substr(0, 16), nullptr, 16);
}

}  // namespace

json plan_json(const Plan& p) {
  json tiers = json::array();
  for (const PlanTier& t : p.tiers) {
    tiers.push_back(
        {{"id", t.id}, {"endpoint", t.endpoint}, {"weight", t.weight}, {"gated", t.gated}});
  }
  json extension = nullptr;
  if (p.extension) extension = {{"s0", p.extension->s0}, {"max_pairs", p.extension->max_pairs}};
  json out{{"schema", "assay-plan"},
           {"schema_version", "1.0.0"},
           {"op", p.op},
           {"a", p.a},
           {"b", p.b},
           {"family", p.family},
           {"family_size", p.family_size},
           {"lane", p.lane},
           {"backend", p.backend},
           {"base", p.base},
           {"protocol", p.protocol},
           {"stage", p.stage},
           {"primary", p.primary},
           {"alpha", p.alpha},
           {"pairs", p.pairs},
           {"burn_in_pairs", p.burn_in_pairs},
           {"aa_every", p.aa_every},
           {"bars", {{"effect", p.bar}, {"tier_min", p.tier_min}}},
           {"tiers", tiers},
           {"blocks", p.blocks},
           {"block_us", p.block_us},
           {"threads", p.threads},
           {"regime", p.regime},
           {"discard_codes", p.discard_codes},
           {"underpowered", p.underpowered},
           {"extension", extension}};
  if (p.injected != 0.0)
    out["injected"] = p.injected;  // absent elsewhere, so that plans keep their hashes
  return out;
}

void check_plan(const Plan& p) {
  const auto require = [](bool good, const std::string& what) {
    if (!good) throw UserError("plan: " + what);
  };
  require(p.pairs >= 4 && p.pairs <= stats::kMaxPairs && p.pairs % 2 == 0,
          "pairs " + std::to_string(p.pairs) +
              ": an even number from 4 to 60, so that the order can be balanced");
  require(p.pairs >= 8 || p.stage == "smoke",
          "pairs " + std::to_string(p.pairs) +
              ": under 8 pairs only stage smoke, which makes no claim");
  require(p.stage != "smoke" || p.pairs < 8, "stage smoke is for under 8 pairs");
  require(p.protocol != "abg4" || p.pairs == 4, "protocol abg4 has exactly 4 pairs");
  require(p.burn_in_pairs >= 0 && p.burn_in_pairs <= 8, "burn_in_pairs: 0 to 8");
  require(p.aa_every >= 1 && p.aa_every <= 60, "aa_every: 1 to 60");
  require(p.alpha > 0.0 && p.alpha <= 0.2, "alpha: above 0, at most 0.2");
  require(p.family_size >= 1 && p.family_size <= 100, "family_size: 1 to 100");
  require(p.bar > 1.0 && p.bar <= 10.0, "bars.effect: above 1, at most 10");
  require(p.tier_min > 0.0 && p.tier_min < 1.0, "bars.tier_min: between 0 and 1");
  require(p.blocks >= 2 && p.blocks <= 1000 && p.blocks % 2 == 0,
          "blocks: an even number from 2 to 1000");
  require(p.block_us >= 100 && p.block_us <= 1000000, "block_us: 100 to 1000000");
  require(p.threads >= 1 && p.threads <= 256, "threads: 1 to 256");
  require(!p.tiers.empty(), "no tiers");
  double sum = 0.0;
  for (std::size_t i = 0; i < p.tiers.size(); ++i) {
    require(p.tiers[i].weight > 0.0 && p.tiers[i].weight <= 1.0,
            "tier " + p.tiers[i].id + ": weight above 0, at most 1");
    for (std::size_t j = 0; j < i; ++j)
      require(p.tiers[i].id != p.tiers[j].id, "tier " + p.tiers[i].id + " is named twice");
    sum += p.tiers[i].weight;
  }
  require(std::fabs(sum - 1.0) < 1e-9, "tier weights sum to " + std::to_string(sum) + ", not to 1");
  if (p.injected != 0.0) {
    require(p.a == p.b,
            "injected: extra work tests the harness, so both arms run the same variant");
    require(p.injected >= 0.001 && p.injected <= 1.0 &&
                std::fabs(1.0 / p.injected - std::round(1.0 / p.injected)) < 1e-9,
            "injected: one call in a whole number of them, 0.001 to 1, as 0.005 or 0.02");
  }
  if (p.extension) {
    require(p.extension->s0 > 0.0, "extension.s0: above 0");
    require(p.extension->max_pairs > p.pairs && p.extension->max_pairs <= stats::kMaxPairs &&
                p.extension->max_pairs % 2 == 0,
            "extension.max_pairs: even, above pairs, at most 60");
  }
}

Plan plan_from_json(const json& document, const std::string& name) {
  const auto faults = schema_faults(*schema_named("assay-plan"), document);
  if (!faults.empty()) throw InputError(name + ": " + faults.front());
  Plan p;
  p.op = document.at("op");
  p.a = document.at("a");
  p.b = document.at("b");
  p.family = document.at("family");
  p.family_size = document.at("family_size");
  p.lane = document.at("lane");
  p.backend = document.at("backend");
  p.base = document.at("base");
  p.protocol = document.at("protocol");
  p.stage = document.at("stage");
  p.primary = document.at("primary");
  p.alpha = document.at("alpha");
  p.pairs = document.at("pairs");
  p.burn_in_pairs = document.at("burn_in_pairs");
  p.aa_every = document.at("aa_every");
  p.bar = document.at("bars").at("effect");
  p.tier_min = document.at("bars").at("tier_min");
  for (const json& t : document.at("tiers")) {
    p.tiers.push_back({t.at("id"), t.at("endpoint"), t.at("weight"), t.at("gated")});
  }
  p.blocks = document.at("blocks");
  p.block_us = document.at("block_us");
  p.threads = document.at("threads");
  p.regime = document.at("regime");
  p.discard_codes = document.at("discard_codes").get<std::vector<std::string>>();
  p.underpowered = document.at("underpowered");
  if (!document.at("extension").is_null()) {
    p.extension =
        PlanExtension{document["extension"].at("s0"), document["extension"].at("max_pairs")};
  }
  p.injected = document.value("injected", 0.0);
  try {
    check_plan(p);
  } catch (const UserError& e) {
    throw InputError(name + ": " + e.what());
  }
  return p;
}

std::string plan_sha256(const Plan& plan) { return sha256_hex(canonical_json(plan_json(plan))); }

std::uint64_t order_seed(const std::string& plan_hash) { return seed_for("order:" + plan_hash); }

const char* to_string(PairKind kind) {
  switch (kind) {
    case PairKind::kBurnIn:
      return "burn_in";
    case PairKind::kAb:
      return "ab";
    case PairKind::kAa:
      return "aa";
  }
  return "?";
}

Schedule make_schedule(const Plan& plan) {
  const std::string hash = plan_sha256(plan);
  Rng rng(order_seed(hash));
  Schedule out;
  out.code_a = rng.below(2) == 0 ? 'X' : 'Y';
  int pair = 0;
  const auto add = [&](PairKind kind, bool a_first) {
    out.pairs.push_back(
        {pair, kind, a_first, seed_for("blocks:" + hash + ":" + std::to_string(pair))});
    ++pair;
  };
  for (int i = 0; i < plan.burn_in_pairs; ++i) add(PairKind::kBurnIn, rng.below(2) == 0);
  auto order = stats::balanced_order(plan.pairs, seed_for("ab:" + hash));
  const bool four = plan.protocol == "abg4";  // four adjacent alternating pairs: AB BA AB BA
  if (four) order = {1, -1, 1, -1};
  const int aa = plan.pairs / plan.aa_every;
  const auto aa_order = stats::balanced_order(aa + aa % 2, seed_for("aa:" + hash));
  for (int g = 0, i = 0; i < plan.pairs; ++g) {
    const int size = std::min(plan.aa_every, plan.pairs - i);
    // The A/A pair falls anywhere among its group, so that it meets the same drift.
    const int at = size == plan.aa_every && !four
                       ? static_cast<int>(rng.below(static_cast<std::uint64_t>(size) + 1))
                       : -1;
    for (int k = 0; k <= size; ++k) {
      if (k == at) add(PairKind::kAa, aa_order[static_cast<std::size_t>(g)] > 0);
      if (k < size) add(PairKind::kAb, order[static_cast<std::size_t>(i++)] > 0);
    }
  }
  return out;
}

std::vector<ScheduledPair> extension_pairs(const Plan& plan, int already) {
  const std::string hash = plan_sha256(plan);
  const bool first = Rng(seed_for("extend:" + hash + ":" + std::to_string(already))).below(2) == 0;
  std::vector<ScheduledPair> out;
  for (int i = 0; i < 2; ++i) {
    out.push_back({already + i,
                   PairKind::kAb,
                   i == 0 ? first : !first,
                   seed_for("blocks:" + hash + ":" + std::to_string(already + i))});
  }
  return out;
}

std::vector<bool> block_order(int blocks, bool a_first, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<bool> order;
  for (int i = 0; i < blocks; i += 2) {
    const bool abba = i == 0 ? a_first : rng.below(2) == 0;
    for (const bool same : {true, false, false, true}) order.push_back(same == abba);
  }
  return order;
}

}  // namespace assay
