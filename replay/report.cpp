#include "replay/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace assay::replay {
namespace {

using nlohmann::json;

json number(double v) { return std::isfinite(v) ? json(v) : json(nullptr); }
json pair_of(const Interval& i) { return json::array({number(i.low), number(i.high)}); }

json facts_object(const RoutingFacts& f) {
  json skew = json::array();
  for (const auto& [objects, accesses] : f.skew)
    skew.push_back({{"top_share", objects}, {"access_share", accesses}});
  json reuse = json::array();
  for (const auto& [share, steps] : f.reuse_steps)
    reuse.push_back({{"share", share}, {"steps", steps}});
  json working = json::array();
  for (const auto& [window, share] : f.working_set)
    working.push_back({{"window_steps", window}, {"object_share", share}});
  return {{"steps", f.steps},
          {"accesses", f.accesses},
          {"objects_used", f.objects_used},
          {"adjacent_share", f.adjacent_share},
          {"layer_adjacent_share", f.layer_adjacent_share},
          {"skew", skew},
          {"reuse_steps", reuse},
          {"working_set", working}};
}

const ReportRow* partner(const Report& report, const ReportRow& row, const char* policy) {
  for (const auto& r : report.rows) {
    if (r.spec.policy.name == policy && r.result.slots == row.result.slots &&
        r.spec.partition == row.spec.partition && r.spec.mode == row.spec.mode)
      return &r;
  }
  return nullptr;
}

}  // namespace

void score_rows(Report& report) {
  for (auto& row : report.rows) {
    row.interval = misses_interval(row.result, report.seed, report.resamples);
    const ReportRow* lru = partner(report, row, "lru");
    const ReportRow* best = partner(report, row, "belady");
    if (lru == nullptr || best == nullptr || lru->result.misses <= best->result.misses) continue;
    // Over conversations drawn with these weights.
    const auto closed = [&](const std::vector<std::uint32_t>& weights) {
      double sums[3] = {};
      const RunResult* results[3] = {&lru->result, &row.result, &best->result};
      for (int i = 0; i < 3; ++i) {
        for (std::size_t c = 0; c < weights.size(); ++c)
          sums[i] += static_cast<double>(weights[c]) *
                     static_cast<double>(results[i]->conversations[c].misses);
      }
      return (sums[0] - sums[1]) / (sums[0] - sums[2]);
    };
    const std::size_t n = row.result.conversations.size();
    row.gap_closed = closed(std::vector<std::uint32_t>(n, 1));
    row.gap_interval = bootstrap(n, report.seed, report.resamples, closed);
  }
}

std::string facts_json(const RoutingFacts& facts) { return facts_object(facts).dump(); }

std::string to_json(const Report& report) {
  json results = json::array();
  for (const auto& r : report.rows) {
    const RunResult& x = r.result;
    json row = {{"policy", r.spec.policy.name},
                {"mode", to_string(r.spec.mode)},
                {"partition", to_string(r.spec.partition)},
                {"slots", x.slots},
                {"residency", r.residency},
                {"steps", x.steps},
                {"accesses", x.accesses},
                {"misses", x.misses},
                {"misses_per_step", number(x.misses_per_step())},
                {"hit_rate", number(x.hit_rate())},
                {"p50", x.percentile(0.50)},
                {"p90", x.percentile(0.90)},
                {"p99", x.percentile(0.99)},
                {"max", x.percentile(1.0)},
                {"histogram", x.histogram},
                {"layer_misses", x.layer_misses},
                {"split", report.split},
                {"in_sample", r.in_sample},
                {"warmup_steps", report.warmup},
                {"interval", pair_of(r.interval)}};
    if (r.gap_closed) {
      row["gap_closed"] = number(*r.gap_closed);
      row["gap_closed_interval"] = pair_of(r.gap_interval);
    }
    if (report.cost) {
      const ExpectedSpeed s =
          expected_speed(*report.cost, x, static_cast<std::uint32_t>(report.geometry.top_k));
      row["expected"] = {{"cpu_tokens_per_s", number(s.cpu_tokens_per_s)},
                         {"stage_tokens_per_s", number(s.stage_tokens_per_s)}};
    }
    results.push_back(std::move(row));
  }
  json trace = {{"paths", report.paths},
                {"label", report.label},
                {"layers", report.geometry.layers},
                {"experts", report.geometry.experts},
                {"top_k", report.geometry.top_k},
                {"flat", report.flat},
                {"sealed", report.sealed},
                {"steps", report.steps},
                {"conversations", report.conversations},
                {"expert_bytes", report.expert_bytes},
                {"split", report.split}};
  if (report.facts) trace["facts"] = facts_object(*report.facts);
  json doc = {{"schema", "assay-replay"},
              {"schema_version", 1},
              {"trace", trace},
              {"results", results},
              {"rng_seed", report.seed},
              {"resamples", report.resamples}};
  if (!report.curves.empty()) {
    doc["curves"] = json::array();
    for (const auto& c : report.curves) {
      json misses = json::array();
      for (const double m : c.misses) {
        if (c.kind == "shards") {
          misses.push_back(number(m));
        } else {
          misses.push_back(static_cast<std::uint64_t>(m));
        }
      }
      json curve = {{"kind", c.kind},
                    {"mode", to_string(c.mode)},
                    {"partition", to_string(c.partition)},
                    {"steps", c.steps},
                    {"accesses", c.accesses},
                    {"slots", c.slots},
                    {"misses", misses}};
      if (c.kind == "shards") {
        curve["standard_error"] = c.error;
        curve["worst_error_share"] = c.worst_error_share;
        curve["mean_error_share"] = c.mean_error_share;
      }
      doc["curves"].push_back(std::move(curve));
    }
  }
  if (!report.allocations.empty()) {
    doc["allocations"] = json::array();
    for (const auto& a : report.allocations) {
      doc["allocations"].push_back({{"residency", a.residency},
                                    {"slots", a.slots},
                                    {"layer_slots", a.layers},
                                    {"even_misses_per_step", number(a.even_misses_per_step)},
                                    {"chosen_misses_per_step", number(a.chosen_misses_per_step)},
                                    {"chosen_on", a.chosen_on},
                                    {"scored_on", a.scored_on}});
    }
  }
  if (report.cost) doc["cost"] = {{"name", report.cost->name}, {"card", report.cost->card}};
  return doc.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string to_table(const Report& report) {
  std::string out =
      fmt::format("{}, {} steps of {} conversations, split {}, warm-up {} steps\n",
                  report.flat ? std::string("flat access log") : report.geometry.describe(),
                  report.steps,
                  report.conversations,
                  report.split,
                  report.warmup);
  if (!report.sealed) out += "unsealed: an interrupted capture, splits unknown\n";
  if (report.facts) {
    const RoutingFacts& f = *report.facts;
    out += fmt::format(
        "routing: {:.1f} % of a layer's experts were used the step before; {} of {} experts used",
        100.0 * f.adjacent_share,
        f.objects_used,
        report.geometry.layers * report.geometry.experts);
    for (const auto& [top, share] : f.skew) {
      if (top == 0.10) out += fmt::format("; the top 10 % take {:.1f} % of uses", 100.0 * share);
    }
    out += '\n';
  }
  std::size_t width = 6;
  for (const auto& r : report.rows) width = std::max(width, r.spec.policy.name.size());
  out += fmt::format(
      "\n{:<{}}  part    slots  resid.  misses/step  95 % interval    hit %  p50 p90 p99 max  gap "
      "closed",
      "policy",
      width);
  if (report.cost) out += "  tok/s cpu  stage";
  out += '\n';
  for (const auto& r : report.rows) {
    out += fmt::format(
        "{:<{}}  {:<6} {:>6}  {:>5.1f}%  {:>11.4f}  {:>6.2f} .. {:<6.2f}  {:>6.2f}  {:>3} {:>3} "
        "{:>3} {:>3}",
        r.spec.policy.name,
        width,
        to_string(r.spec.partition),
        r.result.slots,
        100.0 * r.residency,
        r.result.misses_per_step(),
        r.interval.low,
        r.interval.high,
        100.0 * r.result.hit_rate(),
        r.result.percentile(0.50),
        r.result.percentile(0.90),
        r.result.percentile(0.99),
        r.result.percentile(1.0));
    out += r.gap_closed ? fmt::format("  {:>8.1f} %", 100.0 * *r.gap_closed) : std::string(12, ' ');
    if (report.cost) {
      const ExpectedSpeed s =
          expected_speed(*report.cost, r.result, static_cast<std::uint32_t>(report.geometry.top_k));
      out += fmt::format("  {:>9.1f} {:>6.1f}", s.cpu_tokens_per_s, s.stage_tokens_per_s);
    }
    out += r.in_sample ? "  in-sample\n" : "\n";
  }
  for (const auto& a : report.allocations) {
    std::string slots;
    for (const auto n : a.layers) slots += (slots.empty() ? "" : " ") + std::to_string(n);
    out += fmt::format(
        "\nslots a layer at {:.1f} % (chosen on {}, scored on {}): {:.3f} misses/step against "
        "{:.3f} with even slots\n  {}\n",
        100.0 * a.residency,
        a.chosen_on,
        a.scored_on,
        a.chosen_misses_per_step,
        a.even_misses_per_step,
        slots);
  }
  for (const auto& c : report.curves) {
    if (c.kind == "shards") {
      out +=
          fmt::format("SHARDS curve: {:.4f} mean, {:.4f} worst distance to the exact miss ratio\n",
                      c.mean_error_share,
                      c.worst_error_share);
    }
  }
  return out;
}

}  // namespace assay::replay
