// assay search: the best rules of a cache-policy family, chosen on the train split and scored once on the held-out split.
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/record_options.h"
#include "kernels/base/command_line.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/sha256.h"
#include "replay/report.h"
#include "replay/search.h"

namespace assay {
namespace {

using namespace replay;
using nlohmann::json;

constexpr const char* kBaseline = "decay32";

json pair_of(const Interval& i) { return json::array({i.low, i.high}); }

json candidates_json(const std::vector<Candidate>& all) {
  json out = json::array();
  for (const auto& c : all)
    out.push_back({{"policy", c.policy}, {"closed", c.closed}, {"score", c.score}});
  return out;
}

// LRU, baseline, winner and Belady on the held-out split, one row a size and policy in that order.
Report score_held_out(Sequence& sequence,
                      const SearchOptions& options,
                      const std::string& winner,
                      int resamples) {
  Report report;
  report.geometry = sequence.geometry();
  report.steps = sequence.steps();
  report.conversations = sequence.conversations().size();
  report.warmup = options.warmup;
  report.seed = options.seed;
  report.resamples = resamples;
  report.split = "held-out";
  std::vector<RunSpec> specs;
  for (const auto slots : options.slots) {
    for (const std::string& policy :
         {std::string("lru"), std::string(kBaseline), winner, std::string("belady")}) {
      ReportRow row;
      row.spec = {parse_policy(policy), Mode::kGroup, Partition::kGlobal, slots};
      row.residency = static_cast<double>(slots) / static_cast<double>(sequence.objects());
      row.in_sample = row.spec.policy.in_sample;
      specs.push_back(row.spec);
      report.rows.push_back(std::move(row));
    }
  }
  const auto results = run_policies(sequence, nullptr, specs, options.warmup);
  for (std::size_t i = 0; i < results.size(); ++i) report.rows[i].result = results[i];
  score_rows(report);
  return report;
}

// Share of the gap that the winner closes beyond the baseline, over conversations drawn together.
json against_baseline(const Report& report) {
  json out = json::array();
  for (std::size_t i = 0; i + 3 < report.rows.size(); i += 4) {
    const auto difference = [&](const std::vector<std::uint32_t>& weights) {
      double sums[4] = {};
      for (std::size_t p = 0; p < 4; ++p) {
        for (std::size_t c = 0; c < weights.size(); ++c)
          sums[p] += static_cast<double>(weights[c]) *
                     static_cast<double>(report.rows[i + p].result.conversations[c].misses);
      }
      return (sums[1] - sums[2]) / (sums[0] - sums[3]);
    };
    const std::size_t n = report.rows[i].result.conversations.size();
    out.push_back({{"slots", report.rows[i].result.slots},
                   {"residency", report.rows[i].residency},
                   {"difference", difference(std::vector<std::uint32_t>(n, 1))},
                   {"interval", pair_of(bootstrap(n, report.seed, report.resamples, difference))}});
  }
  return out;
}

int run(int argc, char** argv) {
  CommandLine app(
      "Search the rules of the policy family `successor`: candidates are scored on the train "
      "split, the\n"
      "winner once on the held-out split, beside LRU, decay32 and Belady. Group mode, one global "
      "cache.",
      "assay search",
      "assay search traces/tiny-capture.mrt --candidates 64 --screen-steps 1500");
  std::vector<std::string> paths;
  std::vector<double> residency = {0.25, 0.5};
  SearchOptions options;
  options.candidates = 320;
  options.screen_steps = 12000;
  int resamples = 2000;
  RecordOptions record_to;
  app.add_option("traces", paths, "traces with both splits").required().type_name("T..");
  app.add_option("--residency", residency, "cache sizes as shares of all experts")
      .delimiter(',')
      .type_name("LIST")
      .show_default();
  app.add_option("--candidates", options.candidates, "the budget").type_name("N").show_default();
  app.add_option("--screen-steps", options.screen_steps, "train steps that screen a candidate")
      .type_name("N")
      .show_default();
  app.add_option("--warmup", options.warmup, "steps of each split that are not counted")
      .type_name("N");
  app.add_option("--resamples", resamples, "of the bootstrap over conversations")
      .type_name("N")
      .show_default();
  app.add_option("--rng-seed", options.seed, "of the candidates and the bootstrap")
      .type_name("N")
      .show_default();
  add_record_options(app, record_to);
  app.parse(argc, argv);
  if (resamples < 1 || resamples > 1000000) throw UserError("--resamples must be 1 to 1000000");
  if (options.screen_steps < 1) throw UserError("--screen-steps must be at least 1");
  check_record_options(record_to);

  Sequence train(paths, {.split = Split::kTrain});
  Sequence held_out(paths, {.split = Split::kHeldOut});
  for (const double share : residency) {
    if (!(share > 0.0 && share <= 1.0))
      throw UserError(fmt::format("--residency {} must be above 0 and at most 1", share));
    options.slots.push_back(
        static_cast<std::uint64_t>(std::llround(share * static_cast<double>(train.objects()))));
  }
  SearchResult result;
  {
    Progress bar("searching", 1000);
    result = search_policies(paths, options, [&](std::uint64_t done, std::uint64_t total) {
      bar.update(done * 1000 / total);
    });
  }
  const Report report = score_held_out(held_out, options, result.winner().policy, resamples);
  json held = json::array();
  for (const auto& r : report.rows) {
    held.push_back({{"policy", r.spec.policy.name},
                    {"slots", r.result.slots},
                    {"residency", r.residency},
                    {"misses", r.result.misses},
                    {"misses_per_step", r.result.misses_per_step()},
                    {"interval", pair_of(r.interval)},
                    {"closed", r.gap_closed.value_or(0.0)},
                    {"closed_interval", pair_of(r.gap_interval)}});
  }
  json family = json::array();
  for (const auto& a : search_axes())
    family.push_back(
        {{"name", a.name}, {"low", a.low}, {"high", a.high}, {"logarithmic", a.logarithmic}});
  json digests = json::array();
  for (const auto& path : paths) digests.push_back(sha256_hex(read_file(path)));
  json record = record_frame("assay-search", host_device());
  record.update({{"trace",
                  {{"label", train.label()},
                   {"layers", train.geometry().layers},
                   {"experts", train.geometry().experts},
                   {"top_k", train.geometry().top_k},
                   {"weights", train.has_weights()},
                   {"train_steps", train.steps()},
                   {"train_conversations", train.conversations().size()},
                   {"held_out_steps", held_out.steps()},
                   {"held_out_conversations", held_out.conversations().size()},
                   {"sha256", digests}}},
                 {"family", family},
                 {"rng_seed", options.seed},
                 {"candidates", result.screened.size()},
                 {"screen_steps", std::min(options.screen_steps, train.steps())},
                 {"warmup_steps", options.warmup},
                 {"resamples", resamples},
                 {"screened", candidates_json(result.screened)},
                 {"finalists", candidates_json(result.finalists)},
                 {"winner", result.winner().policy},
                 {"held_out", held},
                 {"against", against_baseline(report)}});
  if (!record_to.quiet()) {
    std::cout << result.screened.size() << " candidates; the winner closes "
              << fmt::format("{:.1f} % on the train split\n", 100.0 * result.winner().score)
              << result.winner().policy << "\n\nheld-out:\n"
              << to_table(report);
    for (const auto& a : record["against"]) {
      std::cout << fmt::format("{:.0f} %: {:+.1f} points against {} ({:+.1f} .. {:+.1f})\n",
                               100.0 * a["residency"].get<double>(),
                               100.0 * a["difference"].get<double>(),
                               kBaseline,
                               100.0 * a["interval"][0].get<double>(),
                               100.0 * a["interval"][1].get<double>());
    }
  }
  store_record(record_to, std::move(record), "search.jsonl");
  return 0;
}

}  // namespace

extern const Command command_search;
const Command command_search{
    "search", "traces", "the best rules of a policy family, scored on held-out conversations", run};

}  // namespace assay
