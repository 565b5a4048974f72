#include "bench/calibration.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "bench/analysis.h"
#include "bench/stats.h"
#include "kernels/base/record.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

using nlohmann::json;

// The cheapest plan that is still a whole one: one tier, two blocks, no burn-in.
Plan calibration_plan(int pairs, const std::string& b) {
  Plan p;
  p.op = "synthetic";
  p.b = b;
  p.family = "synthetic";
  p.pairs = pairs;
  p.blocks = 2;
  p.burn_in_pairs = 0;
  p.aa_every = 60;
  p.tiers = {{"only", "micro", 1.0, true}};
  return p;
}

json one_sitting(const Plan& plan, const NoiseModel& noise, double effect, std::uint64_t seed) {
  static const AbInputs inputs = synthetic_inputs();
  const auto device = make_synthetic_device(plan, noise, effect, seed);
  return run_ab(plan, *device, inputs);
}

json cell_json(const CalibrationCell& c) {
  return {{"scenario", c.scenario},
          {"pairs", c.pairs},
          {"effect", c.effect},
          {"repetitions", c.repetitions},
          {"covered", c.covered},
          {"different", c.different},
          {"wins", c.wins}};
}

}  // namespace

AbInputs synthetic_inputs() {
  AbInputs in;
  in.parity = {{"record_sha256", ""},
               {"outcome", "pass"},
               {"class", "bitwise"},
               {"worst_rel_l2", 0.0},
               {"max_ulp", 0},
               {"cases", 1},
               {"exe_sha256", ""}};
  in.peer = {{"name", nullptr}, {"reason", "synthetic device"}};
  in.machine = {{"card", "synthetic"},
                {"backend", "host"},
                {"cpu", "synthetic"},
                {"threads", 1},
                {"cuda", "none"},
                {"kernel", ""},
                {"governor", ""},
                {"last_level_cache_bytes", 0},
                {"gpu", nullptr}};
  in.scratch = true;
  return in;
}

CalibrationCell run_calibration_cell(
    const NoiseModel& noise, int pairs, double effect, int repetitions, std::uint64_t seed) {
  CalibrationCell cell{noise.name, pairs, effect, repetitions, 0, 0, 0};
  Rng rng(seed ^ seed_from_name(noise.name));
  for (int i = 0; i < repetitions; ++i) {
    // A new name is a new plan hash and with it a new order.
    const json record = one_sitting(
        calibration_plan(pairs, "trial_" + std::to_string(i)), noise, effect, rng.next());
    const json& interval = record.at("analysis").at("interval");
    const double low = interval.at(0);
    const double high = interval.at(1);
    cell.covered += low <= effect && effect <= high ? 1 : 0;
    cell.different += low > 0.0 || high < 0.0 ? 1 : 0;
    cell.wins += low > 0.0 ? 1 : 0;
  }
  return cell;
}

CampaignCell run_null_campaigns(int variants, int campaigns, std::uint64_t seed) {
  CampaignCell cell{variants, campaigns, 0};
  Rng rng(seed);
  const NoiseModel noise{.name = "normal", .pair_sd = 0.01};
  constexpr int kConfirmed = 3;
  for (int c = 0; c < campaigns; ++c) {
    std::vector<std::pair<double, std::string>> screened;
    for (int v = 0; v < variants; ++v) {
      const std::string name = "noop_" + std::to_string(c) + "_" + std::to_string(v);
      Plan plan = calibration_plan(8, name);
      plan.stage = "screen";
      screened.emplace_back(
          -one_sitting(plan, noise, 0.0, rng.next()).at("analysis").at("estimate").get<double>(),
          name);
    }
    std::sort(screened.begin(), screened.end());
    bool claim = false;
    for (int k = 0; k < std::min(kConfirmed, variants); ++k) {
      Plan plan = calibration_plan(12, screened[static_cast<std::size_t>(k)].second);
      plan.family_size = kConfirmed;
      const std::string word = one_sitting(plan, noise, 0.0, rng.next()).at("verdict").at("word");
      claim = claim || word == "ADOPT" || word == "STACK-MEMBER";
    }
    cell.with_claim += claim ? 1 : 0;
  }
  return cell;
}

json calibration_table(int repetitions,
                       std::uint64_t seed,
                       const std::function<void(std::size_t, std::size_t)>& progress) {
  const auto scenarios = noise_scenarios(0.01);
  constexpr int kSizes[] = {8, 12, 16, 24};
  const std::size_t total = scenarios.size() * (std::size(kSizes) + 1) + std::size(kSizes) + 4;
  std::size_t done = 0;
  const auto step = [&] {
    if (progress) progress(++done, total);
  };
  json coverage = json::array();
  for (const auto& noise : scenarios) {
    for (const int pairs : kSizes) {
      coverage.push_back(cell_json(run_calibration_cell(noise, pairs, 0.015, repetitions, seed)));
      step();
    }
  }
  json conservative = json::array();
  for (const int pairs : kSizes) {
    NoiseModel noise{.name = "order_effect_large", .pair_sd = 0.01, .order_bonus = 0.01};
    conservative.push_back(cell_json(run_calibration_cell(noise, pairs, 0.015, repetitions, seed)));
    step();
  }
  json null = json::array();
  for (const auto& noise : scenarios) {
    null.push_back(cell_json(run_calibration_cell(noise, 8, 0.0, 1000, seed + 1)));
    step();
  }
  const double effect = stats::ln(1.015);
  json power = json::array();
  const NoiseModel cells[] = {
      {.name = "normal_1.0", .pair_sd = 0.010},
      {.name = "normal_1.5", .pair_sd = 0.015},
      {.name = "spikes_0.75", .pair_sd = 0.0075, .tail = 0.1, .spike_mean = 0.04}};
  const int sizes[] = {8, 12, 12};
  for (int i = 0; i < 3; ++i) {
    power.push_back(
        cell_json(run_calibration_cell(cells[i], sizes[i], effect, repetitions, seed + 2)));
    step();
  }
  const CampaignCell campaigns = run_null_campaigns(12, 1000, seed + 3);
  step();
  return {{"schema", "assay-calibration"},
          {"schema_version", "1.0.0"},
          {"recorded_utc", utc_now()},
          {"rng_seed", seed},
          {"alpha", 0.05},
          {"coverage", coverage},
          {"conservative", conservative},
          {"aa", null},
          {"power", power},
          {"null_campaigns",
           {{"variants", campaigns.variants},
            {"campaigns", campaigns.campaigns},
            {"with_claim", campaigns.with_claim}}},
          {"code_sha256", analysis_code_sha256()},
          {"build", build_json()}};
}

}  // namespace assay
