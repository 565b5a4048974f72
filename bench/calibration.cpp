#include "bench/calibration.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <mutex>

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

// What a verifier makes again: enough to catch an edit, few enough for a second over the whole table.
constexpr int kHead = 3;

json cell_json(const CalibrationCell& c) {
  json head = json::array();
  for (const stats::Interval& i : c.head) head.push_back({i.low, i.high});
  return {{"scenario", c.scenario},
          {"pairs", c.pairs},
          {"effect", c.effect},
          {"repetitions", c.repetitions},
          {"covered", c.covered},
          {"different", c.different},
          {"wins", c.wins},
          {"covered_percentile", c.covered_percentile},
          {"covered_bca", c.covered_bca},
          {"head", head}};
}

constexpr int kExperiments = 1000;  // A/A experiments of a scenario, and campaigns

// One row of the table: what to run, and under which key the outcome is stored.
struct Cell {
  const char* key;
  NoiseModel noise;
  int pairs;
  double effect;
  int repetitions;
  std::uint64_t seed;
};

std::vector<Cell> all_cells(int repetitions, std::uint64_t seed) {
  constexpr int kSizes[] = {8, 12, 16, 24};
  std::vector<Cell> cells;
  for (const auto& noise : noise_scenarios(0.01)) {
    for (const int pairs : kSizes)
      cells.push_back({"coverage", noise, pairs, 0.015, repetitions, seed});
    cells.push_back({"abg4", noise, 4, 0.015, repetitions, seed + 4});
    cells.push_back({"aa", noise, 8, 0.0, std::min(repetitions, kExperiments), seed + 1});
  }
  for (const int pairs : kSizes) {
    cells.push_back({"conservative",
                     {.name = "order_effect_large", .pair_sd = 0.01, .order_bonus = 0.01},
                     pairs,
                     0.015,
                     repetitions,
                     seed});
  }
  const double effect = stats::ln(1.015);
  const auto power = [&](const NoiseModel& noise, int pairs) {
    cells.push_back({"power", noise, pairs, effect, repetitions, seed + 2});
  };
  power({.name = "normal_1.0", .pair_sd = 0.010}, 8);
  power({.name = "normal_1.5", .pair_sd = 0.015}, 12);
  power({.name = "spikes_0.75", .pair_sd = 0.0075, .tail = 0.1, .spike_mean = 0.04}, 12);
  return cells;
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
  CalibrationCell cell;
  cell.scenario = noise.name;
  cell.pairs = pairs;
  cell.effect = effect;
  cell.repetitions = repetitions;
  Rng rng(seed ^ seed_from_name(noise.name));
  for (int i = 0; i < repetitions; ++i) {
    // A new name is a new plan hash and with it a new order.
    Plan plan = calibration_plan(pairs, "trial_" + std::to_string(i));
    if (pairs == 4) {
      plan.protocol = "abg4";
      plan.stage = "smoke";
    }
    const json record = one_sitting(plan, noise, effect, rng.next());
    const json& analysis = record.at("analysis");
    const auto ends = [](const json& pair) { return stats::Interval{pair.at(0), pair.at(1)}; };
    stats::Interval interval;
    if (pairs == 4) {
      const stats::Interval ratios = ends(analysis.at("abg4").at("interval"));
      interval = {stats::ln(ratios.low), stats::ln(ratios.high)};
    } else {
      interval = ends(analysis.at("interval"));
    }
    const auto covers = [&](const stats::Interval& x) {
      return x.low <= effect && effect <= x.high;
    };
    cell.covered += covers(interval) ? 1 : 0;
    cell.different += interval.low > 0.0 || interval.high < 0.0 ? 1 : 0;
    cell.wins += interval.low > 0.0 ? 1 : 0;
    const json& bootstrap = analysis.at("bootstrap_legacy");
    cell.covered_percentile += covers(ends(bootstrap.at("percentile"))) ? 1 : 0;
    cell.covered_bca += covers(ends(bootstrap.at("bca"))) ? 1 : 0;
    if (i < kHead) cell.head.push_back(interval);
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
                       int threads,
                       const std::function<void(std::size_t, std::size_t)>& progress) {
  const auto cells = all_cells(repetitions, seed);
  std::vector<json> outcomes(cells.size());
  CampaignCell campaigns;
  // The campaigns are the longest piece and go first.
  std::atomic<std::size_t> next{0};
  std::mutex reporting;
  std::size_t done = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i <= cells.size(); i = next++) {
      if (i == 0) {
        campaigns = run_null_campaigns(12, std::min(repetitions, kExperiments), seed + 3);
      } else {
        const Cell& c = cells[i - 1];
        outcomes[i - 1] =
            cell_json(run_calibration_cell(c.noise, c.pairs, c.effect, c.repetitions, c.seed));
      }
      const std::lock_guard lock(reporting);
      if (progress) progress(++done, cells.size() + 1);
    }
  };
  std::vector<std::future<void>> workers;
  for (int t = 1; t < threads; ++t) workers.push_back(std::async(std::launch::async, work));
  work();
  for (auto& w : workers) w.get();
  json out{{"schema", "assay-calibration"},
           {"schema_version", "1.0.0"},
           {"recorded_utc", utc_now()},
           {"rng_seed", seed},
           {"repetitions", repetitions},
           {"alpha", 0.05},
           {"null_campaigns",
            {{"variants", campaigns.variants},
             {"campaigns", campaigns.campaigns},
             {"with_claim", campaigns.with_claim}}},
           {"code_sha256", analysis_code_sha256()},
           {"build", build_json()}};
  for (std::size_t i = 0; i < cells.size(); ++i) out[cells[i].key].push_back(outcomes[i]);
  return out;
}

std::vector<std::string> calibration_faults(const json& record) {
  std::vector<std::string> faults;
  const auto cells = all_cells(record.at("repetitions"), record.at("rng_seed"));
  const bool same_code = record.at("code_sha256") == analysis_code_sha256();
  std::map<std::string, std::size_t> at;
  for (const Cell& c : cells) {
    const std::size_t index = at[c.key]++;
    const std::string where = std::string(c.key) + "/" + std::to_string(index);
    if (index >= record.at(c.key).size()) {
      faults.push_back(where + ": missing");
      continue;
    }
    const json& stored = record[c.key][index];
    if (stored.at("scenario") != c.noise.name || stored.at("pairs") != c.pairs ||
        stored.at("effect") != c.effect || stored.at("repetitions") != c.repetitions) {
      faults.push_back(where + ": not the table's cell");
      continue;
    }
    for (const char* key : {"covered", "different", "wins", "covered_percentile", "covered_bca"}) {
      if (stored.at(key) > c.repetitions)
        faults.push_back(where + "/" + key + ": more than there were repetitions");
    }
    if (!same_code) continue;
    const json again =
        cell_json(run_calibration_cell(c.noise, c.pairs, c.effect, kHead, c.seed)).at("head");
    if (stored.at("head") != again)
      faults.push_back(where + "/head: the seed gives other intervals");
  }
  for (const auto& [key, count] : at) {
    if (record.at(key).size() != count) faults.push_back(key + ": cells that the table has not");
  }
  return faults;
}

std::vector<std::string> calibration_misses(const json& record) {
  std::vector<std::string> misses;
  if (record.at("repetitions").get<int>() < kExperiments)
    return {"a reduced table: the marks are for 1,000 repetitions and more"};
  const auto expect = [&](bool good, const json& cell, const char* what) {
    if (!good)
      misses.push_back(cell.at("scenario").get<std::string>() + ", " +
                       std::to_string(cell.at("pairs").get<int>()) + " pairs: " + what);
  };
  const auto share = [](const json& cell, const char* key) {
    return cell.at(key).get<double>() / cell.at("repetitions").get<double>();
  };
  for (const json& cell : record.at("coverage")) {
    const double covered = share(cell, "covered");
    expect(covered >= 0.93 && covered <= 0.977, cell, "coverage outside 93 to 97.7 %");
  }
  for (const json& cell : record.at("aa")) {
    const int different = cell.at("different");
    expect(different >= 28 && different <= 61,
           cell,
           "equal arms called different outside 28 to 61 of 1,000");
    expect(
        cell.at("wins").get<int>() <= 33, cell, "B won against itself more than 33 times of 1,000");
  }
  for (const json& cell : record.at("power"))
    expect(share(cell, "wins") >= 0.8, cell, "1.5 % found with less than 80 % power");
  const json& campaigns = record.at("null_campaigns");
  if (campaigns.at("with_claim").get<double>() > 0.05 * campaigns.at("campaigns").get<double>())
    misses.emplace_back("more than 5 % of campaigns of no-ops ended with a claim");
  return misses;
}

}  // namespace assay
