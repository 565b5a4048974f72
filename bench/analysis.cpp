#include "bench/analysis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "analysis_code.h"
#include "bench/plan.h"
#include "bench/stats.h"
#include "kernels/base/error.h"
#include "kernels/base/record.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

using nlohmann::json;

// More CPU time than this many threads' worth means that the arm brought helpers.
constexpr double kCpuSlack = 1.25;
constexpr double kCpuReadS = 3e-6;  // reading that clock is a system call, once a group
// Share of the claimed saving that may vanish when every call gets new content.
constexpr double kAuditShare = 0.5;
constexpr double kAuditFloorS = 2e-6;
// Time a group may take outside its own clock beyond what A's groups take.
constexpr double kHiddenFloorS = 20e-6;
constexpr double kHiddenShare = 0.1;
constexpr double kEventShare = 0.01;    // events have steps of half a microsecond
constexpr double kMaxWaitShare = 0.10;  // of several threads; one thread's waiting is subtracted
constexpr double kMaxDiscardShare = 0.10;
constexpr double kEquivalence = 0.005;
constexpr double kMaxTierLog = 0.6931471805599453;  // ln 2

json optional_json(const std::optional<double>& v) { return v ? json(*v) : json(nullptr); }
json interval_json(const stats::Interval& i) { return json::array({i.low, i.high}); }

// One start of one arm, reduced.
struct Start {
  int run = 0;
  int pair = 0;
  int slot = 0;
  char code = 'X';
  PairKind kind = PairKind::kAb;
  std::string status;
  const json* samples = nullptr;
};

// Busy seconds of each block: by the card's clock where there is one.
std::vector<double> block_times(const json& samples, int threads) {
  if (samples.contains("event")) return samples["event"].get<std::vector<double>>();
  std::vector<double> out;
  for (std::size_t i = 0; i < samples.at("wall").size(); ++i) {
    out.push_back(
        busy_time(samples["wall"][i], samples.at("cpu")[i], samples.at("wait")[i], threads));
  }
  return out;
}

// Time around one group that its own clock did not show, by a clock that the child cannot forge: the parent's ("outer") or
// the kernel's count of its running ("ran"). It holds content, poison and hashes, the same in both arms; the warm-up call of
// the block is taken off at the claimed speed. A child that hides time shows here.
double group_overhead(const json& samples, const char* clock, int threads) {
  const double group_calls = samples.at("group_calls");
  // The wall clock of a card's groups starts after the warm-up.
  const bool warmed = samples.at("warmed").get<bool>() && std::string_view(clock) != "wall";
  const auto busy = block_times(samples, threads);
  std::vector<double> each;
  for (std::size_t i = 0; i < busy.size(); ++i) {
    const double calls = samples.at("calls")[i];
    const double rest =
        samples.at(clock)[i].get<double>() - busy[i] - (warmed ? busy[i] / calls : 0.0);
    each.push_back(rest / (calls / group_calls + 1.0));
  }
  return stats::median(each);
}

double call_time(const json& samples, int threads) {
  const auto busy = block_times(samples, threads);
  std::vector<double> each;
  for (std::size_t i = 0; i < busy.size(); ++i)
    each.push_back(busy[i] / samples.at("calls")[i].get<double>());
  return stats::median(each);
}

PairKind kind_named(const std::string& name) {
  return name == "aa" ? PairKind::kAa : (name == "burn_in" ? PairKind::kBurnIn : PairKind::kAb);
}

std::vector<Start> read_starts(const json& record, const Plan& plan) {
  std::vector<Start> out;
  int index = 0;
  for (const json& run : record.at("runs")) {
    const std::string where = "runs/" + std::to_string(index++);
    Start s;
    s.run = run.at("run");
    s.pair = run.at("pair");
    s.slot = run.at("slot");
    const std::string code = run.at("arm");
    s.code = code.at(0);
    s.kind = kind_named(run.at("kind"));
    s.status = run.at("status");
    s.samples = &run.at("samples");
    if (s.status == "ok") {
      for (const PlanTier& t : plan.tiers) {
        if (!s.samples->contains(t.id)) throw InputError(where + "/samples lacks tier " + t.id);
        const json& v = (*s.samples)[t.id];
        const auto n = v.at("wall").size();
        if (n == 0 || v.at("calls").size() != n || v.at("cpu").size() != n ||
            v.at("outer").size() != n || v.at("wait").size() != n || v.at("ran").size() != n ||
            (v.contains("event") && v["event"].size() != n)) {
          throw InputError(
              where + "/samples/" + t.id +
              ": wall, cpu, wait, ran, outer, event and calls differ in length or are empty");
        }
        for (std::size_t i = 0; i < n; ++i) {
          if (!(v["wall"][i].get<double>() > 0.0) || !(v["calls"][i].get<double>() >= 1.0)) {
            throw InputError(where + "/samples/" + t.id + ": sample " + std::to_string(i) +
                             " is not a positive time");
          }
        }
      }
    }
    out.push_back(s);
  }
  return out;
}

stats::Pairs paired(const std::vector<Start>& starts,
                    const Plan& plan,
                    PairKind kind,
                    const std::string& name) {
  std::vector<stats::Row> rows;
  for (const Start& s : starts) {
    if (s.kind != kind || s.status != "ok") continue;
    for (const PlanTier& t : plan.tiers) {
      rows.push_back(
          {s.pair, s.slot, s.code, t.id, 1.0 / call_time(s.samples->at(t.id), plan.threads)});
    }
  }
  std::vector<stats::TierWeight> tiers;
  for (const PlanTier& t : plan.tiers) tiers.push_back({t.id, t.weight, t.gated});
  try {
    return stats::pair_up(rows, tiers);
  } catch (const std::invalid_argument& e) {
    throw InputError(name + ": " + e.what());
  }
}

// The codes are opened here: from now on d is ln(B / A) and o is +1 where A ran first.
void unblind(stats::Pairs& pairs, char code_a) {
  if (code_a == 'X') return;
  for (double& v : pairs.d) v = -v;
  for (auto& tier : pairs.tier_ln) {
    for (double& v : tier) v = -v;
  }
  for (int& sign : pairs.o) sign = -sign;
}

// Median over one arm's starts of the time of a call, for display.
std::optional<double> median_call(const std::vector<Start>& starts,
                                  char code,
                                  const std::string& tier,
                                  int threads) {
  std::vector<double> values;
  for (const Start& s : starts) {
    if (s.kind == PairKind::kAb && s.status == "ok" && s.code == code)
      values.push_back(call_time(s.samples->at(tier), threads));
  }
  if (values.empty()) return std::nullopt;
  return stats::median(values);
}

std::string percent(double log_ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.2f %%", (stats::exp(log_ratio) - 1.0) * 100.0);
  return text;
}

// The source protocol's interval: percentile bootstrap of the median of four paired ratios. All 256 resamples are counted, so
// it needs no seed; 13 of them have the smallest pair as their median, so that its ends are the smallest and the largest.
stats::Interval bootstrap_of_four(const std::vector<double>& ratios) {
  std::vector<double> medians;
  for (unsigned draw = 0; draw < 256; ++draw) {
    double sample[4];
    for (unsigned i = 0; i < 4; ++i) sample[i] = ratios[draw >> (2 * i) & 3U];
    medians.push_back(stats::median(sample));
  }
  std::sort(medians.begin(), medians.end());
  return {medians[6], medians[249]};  // 2.5 % of 256 lie below, and above
}

// Four pairs, their median, the interval and the bar, as the source material has them. No verdict rests on it.
json abg4_json(const Plan& plan, const stats::Pairs& ab) {
  std::vector<double> ratios;
  for (const double d : ab.d) ratios.push_back(stats::exp(d));
  const stats::Interval interval = bootstrap_of_four(ratios);
  bool tiers = true;
  for (const auto& tier : ab.tier_ln)
    tiers = tiers && stats::exp(stats::median(tier)) >= plan.tier_min;
  const double median = stats::median(ratios);
  return {
      {"ratios", ratios},
      {"median_ratio", median},
      {"interval", interval_json(interval)},
      // By counting: both ends miss a symmetric centre only when all four pairs lie on one side of it.
      {"coverage", 0.875},
      {"meets_bar", median >= plan.bar && interval.low > 1.0 && tiers}};
}

// At the 1 % level, or with every pair on one side where so few pairs cannot reach it.
bool shown_above_zero(const std::vector<double>& excess) {
  if (excess.empty()) return false;
  const double fewest = stats::signed_rank_tail(static_cast<int>(excess.size()), 0);
  return stats::signed_rank_p_above(excess, 0.0) <= std::max(0.01, fewest);
}

// What the runs say against the claim, in words: wrong answers, and breaches of the measuring rules.
struct Findings {
  std::vector<std::string> reject;
  std::vector<std::string> invalid;
};

Findings find_faults(const json& record,
                     const Plan& plan,
                     const std::vector<Start>& starts,
                     char code_a) {
  Findings out;
  const json& parity = record.at("parity");
  if (parity.at("outcome") != "pass")
    out.reject.push_back("parity " + parity.at("outcome").get<std::string>());
  std::map<int, std::set<char>> complete;
  std::set<int> planned;
  int discarded = 0;
  int kept = 0;
  std::set<std::string> seen;
  const auto add = [&](std::vector<std::string>& list, const std::string& text) {
    if (seen.insert(text).second) list.push_back(text);
  };
  const char code_b = code_a == 'X' ? 'Y' : 'X';
  std::set<int> failed_pairs;
  for (const Start& s : starts) {
    if (s.status == "failed") failed_pairs.insert(s.pair);
  }
  std::size_t index = 0;
  for (const json& run : record.at("runs")) {
    const Start& s = starts[index];
    const std::string where = "run " + std::to_string(index++);
    const bool is_b = s.kind != PairKind::kAa && s.code == code_b;
    const std::string want = is_b ? plan.b : plan.a;
    auto& wrong = is_b ? out.reject : out.invalid;
    const std::string who = is_b ? "B" : "A";
    if (s.status == "discarded") {
      const std::string code = run.at("code").is_null() ? "" : run.at("code").get<std::string>();
      if (code == kPartnerFailed && failed_pairs.count(s.pair) != 0) continue;
      ++discarded;
      if (std::find(plan.discard_codes.begin(), plan.discard_codes.end(), code) ==
          plan.discard_codes.end()) {
        add(out.invalid,
            where + " was discarded for '" + code + "', which the plan does not allow");
      }
      continue;
    }
    if (s.status == "failed") {
      const std::string code =
          run.at("code").is_null() ? "no code" : run.at("code").get<std::string>();
      std::string text = who + " failed: " + code;
      for (const auto& [tier, why] : run.at("fallback").items())
        text += ", tier " + tier + " " + why.get<std::string>();
      // What never ran has not lost.
      add(code == "INELIGIBLE" || code == "REFUSED" ? out.invalid : wrong, text);
      for (const json& f : run.at("faults")) add(wrong, who + " " + f.get<std::string>());
      continue;
    }
    ++kept;
    if (s.kind == PairKind::kAb) complete[s.pair].insert(s.code);
    const json& proof = run.at("switch_proof");
    if (proof.at("seen_in_process") != want || proof.at("child_echo") != want) {
      add(out.invalid,
          where + ": the process ran with switch '" +
              proof.at("seen_in_process").get<std::string>() + "' and resolved '" +
              proof.at("child_echo").get<std::string>() + "', not '" + want + "'");
    }
    if (!run.at("fallback").empty()) {
      add(out.invalid,
          who + " is not eligible: " + run.at("fallback").begin().value().get<std::string>());
    }
    if (!run.at("faults").empty()) {
      for (const json& f : run["faults"]) add(wrong, who + " " + f.get<std::string>());
    }
    for (const auto& [tier, v] : run.at("samples").items()) {
      double wall = 0.0;
      double cpu = 0.0;
      for (const json& w : v.at("wall")) wall += w.get<double>();
      for (const json& c : v.at("cpu")) cpu += c.get<double>();
      double waited = 0.0;
      for (const json& c : v.at("wait")) waited += c.get<double>();
      if (plan.threads > 1 && waited > kMaxWaitShare * wall * plan.threads) {
        add(out.invalid,
            "the machine is too busy for " + std::to_string(plan.threads) +
                " threads: they waited for a core");
      }
      double calls = 0.0;
      for (const json& c : v.at("calls")) calls += c.get<double>();
      const double groups = calls / v.at("group_calls").get<double>();
      if (cpu > kCpuSlack * wall * plan.threads + kCpuReadS * groups) {
        add(out.invalid,
            who + " used more processors than the plan's " + std::to_string(plan.threads) +
                " thread(s) on tier " + tier);
      }
      if (v.contains("event")) {
        double event = 0.0;
        for (const json& e : v["event"]) event += e.get<double>();
        // Both clocks see the same groups; the wall also sees the last wait end.
        if (!(event <= wall * (1.0 + kEventShare)))
          add(out.invalid, where + ": the card's clock shows more than the wall on tier " + tier);
      }
      if (v.at("outputs_checked").get<int>() < 1)
        add(out.invalid, where + ": no output of tier " + tier + " was checked");
    }
  }
  if (plan.a != plan.b) {
    const json* counters[2] = {nullptr, nullptr};
    for (const json& arm : record.at("arms"))
      counters[arm.at("label") == "A" ? 0 : 1] = &arm.at("counters");
    if (counters[0] == nullptr || counters[1] == nullptr) {
      out.invalid.push_back("an arm's counters are missing");
    } else if (kept > 0 && out.reject.empty()) {
      if (counters[1]->at("selected").get<int>() <= 0)
        out.invalid.push_back("B was never selected");
      if (plan.a == "stock" && counters[0]->at("selected") != 0)
        out.invalid.push_back("A selected a variant");
      if (counters[0]->at("eligible") != counters[1]->at("eligible"))
        out.invalid.push_back("the arms differ in eligible tiers");
    }
  }
  if (discarded > kMaxDiscardShare * (kept + discarded)) {
    out.invalid.push_back(std::to_string(discarded) + " of " + std::to_string(kept + discarded) +
                          " runs were discarded, above 10 %");
  }
  int whole = 0;
  for (const auto& [pair, codes] : complete) whole += codes.size() == 2 ? 1 : 0;
  if (whole < plan.pairs && out.reject.empty() && out.invalid.empty()) {
    out.invalid.push_back("only " + std::to_string(whole) + " of " + std::to_string(plan.pairs) +
                          " planned pairs are complete");
  }
  struct Both {
    const Start* a = nullptr;
    const Start* b = nullptr;
  };
  std::map<int, Both> by_pair;
  for (const Start& s : starts) {
    if (s.kind == PairKind::kAb && s.status == "ok")
      (s.code == code_a ? by_pair[s.pair].a : by_pair[s.pair].b) = &s;
  }
  for (const PlanTier& t : plan.tiers) {
    if (!out.reject.empty() || plan.a == plan.b) break;
    // Per pair, so that noise of single starts cannot accuse: each excess is what must be explained beyond a margin, and
    // the exact test over pairs has to find it above zero.
    std::vector<double> repeats;
    std::vector<double> hides_outer;
    std::vector<double> hides_ran;
    std::vector<double> hides_wall;
    for (const auto& [pair, both] : by_pair) {
      if (both.a == nullptr || both.b == nullptr) continue;
      const json& va = both.a->samples->at(t.id);
      const json& vb = both.b->samples->at(t.id);
      const double a = call_time(va, plan.threads);
      const double b = call_time(vb, plan.threads);
      const double saving = std::max(0.0, a - b);
      if (!va.at("audit_s").is_null() && !vb.at("audit_s").is_null()) {
        const double excess = (vb["audit_s"].get<double>() - b) - (va["audit_s"].get<double>() - a);
        repeats.push_back(excess - std::max(kAuditShare * saving, kAuditFloorS));
      }
      const double group_calls = vb.at("group_calls");
      const double margin = std::max(
          {kAuditShare * saving * group_calls, kHiddenFloorS, kHiddenShare * a * group_calls});
      const auto hidden = [&](const char* clock) {
        return group_overhead(vb, clock, plan.threads) - group_overhead(va, clock, plan.threads) -
               margin;
      };
      hides_outer.push_back(hidden("outer"));
      if (vb.contains("event")) {
        // The thread that waits for a card runs all the time: its time on a core says nothing.
        hides_wall.push_back(hidden("wall"));
      } else {
        hides_ran.push_back(hidden("ran"));
      }
    }
    if (shown_above_zero(repeats))
      out.invalid.push_back("B is faster on tier " + t.id + " only while its input repeats");
    if (shown_above_zero(hides_outer) || (plan.threads == 1 && shown_above_zero(hides_ran)))
      out.invalid.push_back("B's clock on tier " + t.id +
                            " disagrees with the parent's and the kernel's");
    if (shown_above_zero(hides_wall))
      out.invalid.push_back("B's events on tier " + t.id + " disagree with the wall clock");
  }
  return out;
}

}  // namespace

double busy_time(double wall_s, double cpu_s, double wait_s, int threads) {
  if (threads != 1) return wall_s;
  // The reading of the wait lies outside the clock and may catch a little more than the groups: the CPU time is its limit.
  return wall_s - std::min(wait_s, std::max(0.0, wall_s - cpu_s));
}

std::string analysis_code_sha256() { return kAnalysisCodeSha256; }

std::string samples_digest(const json& samples) {
  json open = samples;
  open.erase("sha256");
  return sha256_hex(canonical_json(open)).substr(0, 16);
}

std::string aa_pool_key(const json& record) {
  const json& outer = record.at("plan");
  const json& p = outer.contains("body") ? outer["body"] : outer;
  std::string key = record.at("machine").at("card").get<std::string>() + "|" +
                    p.at("backend").get<std::string>() + "|" + p.at("lane").get<std::string>() +
                    "|" + p.at("op").get<std::string>() + "|" + p.at("a").get<std::string>() + "|" +
                    p.at("regime").get<std::string>() + "|" +
                    std::to_string(p.at("threads").get<int>());
  for (const json& t : p.at("tiers")) key += "|" + t.at("id").get<std::string>();
  return key;
}

std::vector<double> aa_differences(const json& record, const json& like) {
  if (aa_pool_key(record) != aa_pool_key(like)) return {};
  const json& d = record.at("aa").at("d");
  return d.get<std::vector<double>>();
}

json analyse(const json& record) {
  json plan_document = record.at("plan").at("body");
  const Plan plan = plan_from_json(plan_document, "plan/body");
  const Schedule schedule = make_schedule(plan);
  const std::uint64_t seed = order_seed(plan_sha256(plan));
  const auto starts = read_starts(record, plan);
  const Findings findings = find_faults(record, plan, starts, schedule.code_a);

  stats::Pairs ab = paired(starts, plan, PairKind::kAb, "A/B");
  unblind(ab, schedule.code_a);
  stats::Pairs aa = paired(starts, plan, PairKind::kAa, "A/A");
  const auto pool = record.at("aa_pool").at("d").get<std::vector<double>>();
  std::vector<double> all_aa = pool;
  all_aa.insert(all_aa.end(), aa.d.begin(), aa.d.end());

  const int n = static_cast<int>(ab.d.size());
  const double member_alpha = plan.alpha / plan.family_size;
  std::optional<double> s_pool;
  if (pool.size() >= 3) s_pool = stats::sample_sd(pool);
  std::optional<double> s_aa;
  if (all_aa.size() >= 3) s_aa = stats::sample_sd(all_aa);
  const auto mde_planned =
      s_pool ? stats::minimum_detectable_effect(plan.pairs, plan.alpha, *s_pool) : std::nullopt;
  const auto mde_achieved =
      s_aa ? stats::minimum_detectable_effect(n, plan.alpha, *s_aa) : std::nullopt;

  json a;
  a["code_sha256"] = analysis_code_sha256();
  a["method"] = "signed-rank";
  a["pairs"] = ab.pair;
  a["d"] = ab.d;
  a["o"] = ab.o;
  a["family_size"] = plan.family_size;
  a["member_alpha"] = member_alpha;
  a["mde_planned"] = optional_json(mde_planned);
  a["mde_achieved"] = optional_json(mde_achieved);
  for (const char* key : {"estimate",
                          "speedup",
                          "interval",
                          "level",
                          "interval_member",
                          "p",
                          "beta",
                          "t_beta",
                          "crossover",
                          "t_adj",
                          "bootstrap_legacy",
                          "p_randomisation",
                          "wins",
                          "e_process"}) {
    a[key] = nullptr;
  }
  a["order_alarm"] = false;
  a["equivalent"] = false;
  a["tiers"] = json::array();

  std::optional<stats::RankInterval> interval;
  std::optional<stats::RankInterval> member;
  std::vector<stats::TierResult> guard;
  bool order_ok = true;
  double estimate = 0.0;
  if (n > 0) {
    estimate = stats::hodges_lehmann(ab.d);
    a["estimate"] = estimate;
    a["speedup"] = stats::exp(estimate);
    // Under 8 pairs there is no honest 95 % interval: the smoke run prints wins and stops there.
    if (plan.stage != "smoke") {
      interval = stats::signed_rank_interval(ab.d, plan.alpha);
      member = stats::signed_rank_interval(ab.d, member_alpha);
    }
    if (interval) {
      a["interval"] = interval_json(interval->interval);
      a["level"] = interval->level;
    }
    if (member) a["interval_member"] = interval_json(member->interval);
    a["p"] = stats::signed_rank_p_two_sided(ab.d);
    int wins = 0;
    for (const double d : ab.d) wins += d > 0.0 ? 1 : 0;
    a["wins"] = json::array({wins, n});
    const auto check = stats::order_check(ab.d, ab.o);
    a["beta"] = check.beta;
    a["t_beta"] = optional_json(check.t_beta);
    const auto crossover = stats::crossover_interval(ab.d, ab.o, plan.alpha);
    if (crossover) {
      a["crossover"] = {{"estimate", crossover->estimate},
                        {"interval", interval_json(crossover->interval)},
                        {"level", crossover->level}};
    }
    const bool alarm = check.t_beta && std::fabs(*check.t_beta) > stats::kOrderAlarm;
    a["order_alarm"] = alarm;
    order_ok = !alarm || (crossover && crossover->interval.low > 0.0);
    if (const auto t = stats::order_adjusted_t(ab.d, ab.o, plan.alpha))
      a["t_adj"] = interval_json(*t);
    const auto boot = stats::bootstrap_median(ab.d, plan.alpha, seed);
    a["bootstrap_legacy"] = {{"percentile", interval_json(boot.percentile)},
                             {"bca", interval_json(boot.bca)},
                             {"coverage_percentile", boot.coverage_percentile},
                             {"coverage_bca", boot.coverage_bca},
                             {"draws", stats::kBootstrapDraws}};
    if (plan.protocol == "abg4" && n == 4) a["abg4"] = abg4_json(plan, ab);
    if (plan.injected > 0.0) {
      const double truth = -stats::ln(1.0 + plan.injected);
      a["injected"] = {
          {"truth", truth},
          {"contained",
           interval && interval->interval.low <= truth && truth <= interval->interval.high}};
    }
    int balance = 0;
    for (const int sign : ab.o) balance += sign;
    if (n % 2 == 0 && balance == 0) a["p_randomisation"] = stats::randomisation_p(ab.d, ab.o, seed);
    a["equivalent"] = plan.stage != "smoke" && stats::equivalent(ab.d, kEquivalence);
    if (plan.extension) a["e_process"] = stats::e_process(ab.d, plan.extension->s0);

    std::vector<std::vector<double>> gated;
    for (std::size_t t = 0; t < plan.tiers.size(); ++t) {
      if (plan.tiers[t].gated) gated.push_back(ab.tier_ln[t]);
    }
    guard = stats::tier_guard(gated, plan.tier_min, plan.alpha);
    const char code_b = schedule.code_a == 'X' ? 'Y' : 'X';
    for (std::size_t t = 0, g = 0; t < plan.tiers.size(); ++t) {
      json row{
          {"id", plan.tiers[t].id},
          {"median_ratio", stats::exp(stats::median(ab.tier_ln[t]))},
          {"lower", nullptr},
          {"guard", nullptr},
          {"interval", nullptr},
          {"a_s",
           optional_json(median_call(starts, schedule.code_a, plan.tiers[t].id, plan.threads))},
          {"b_s", optional_json(median_call(starts, code_b, plan.tiers[t].id, plan.threads))}};
      if (plan.stage != "smoke") {
        if (const auto i = stats::signed_rank_interval(ab.tier_ln[t], plan.alpha)) {
          row["interval"] =
              json::array({stats::exp(i->interval.low), stats::exp(i->interval.high)});
        }
      }
      if (plan.tiers[t].gated) {
        row["lower"] = optional_json(guard[g].lower);
        row["guard"] = stats::to_string(guard[g].guard);
        ++g;
      }
      a["tiers"].push_back(row);
    }
  }

  json aa_out{{"pairs", aa.d.size()},
              {"pool", all_aa.size()},
              {"d", aa.d},
              {"sd", optional_json(s_aa)},
              {"centre", nullptr}};
  if (!all_aa.empty()) aa_out["centre"] = stats::median(all_aa);
  int experiments = 0;
  int false_positives = 0;
  for (std::size_t i = 0; i + 8 <= all_aa.size(); i += 8, ++experiments) {
    const auto chunk = stats::signed_rank_interval(std::span(all_aa).subspan(i, 8), plan.alpha);
    false_positives += chunk && (chunk->interval.low > 0.0 || chunk->interval.high < 0.0) ? 1 : 0;
  }
  aa_out["false_positives"] = json::array({false_positives, experiments});

  // --- verdict ---
  json reasons = json::array();
  json needed = nullptr;
  std::string word;
  bool tier_fail = false;
  bool tier_pass = true;
  for (const auto& g : guard) {
    tier_fail = tier_fail || g.guard == stats::Guard::kFail;
    tier_pass = tier_pass && g.guard == stats::Guard::kPass;
  }
  const bool above = member && member->interval.low > 0.0;
  const bool below = interval && interval->interval.high < 0.0;
  bool collapse = false;
  for (std::size_t t = 0; t < plan.tiers.size() && n > 0; ++t) {
    collapse =
        collapse || (plan.tiers.size() > 1 &&
                     std::fabs(plan.tiers[t].weight * stats::median(ab.tier_ln[t])) > kMaxTierLog);
  }
  if (!findings.reject.empty()) {
    word = "REJECT";
    for (const auto& r : findings.reject) reasons.push_back(r);
  } else if (!findings.invalid.empty()) {
    word = "INVALID";
    for (const auto& r : findings.invalid) reasons.push_back(r);
  } else if (plan.injected > 0.0) {
    word = below ? "REJECT" : (a["equivalent"].get<bool>() ? "NO-EFFECT" : "INCONCLUSIVE");
    const bool contained = a.contains("injected") && a["injected"].at("contained").get<bool>();
    reasons.push_back("B repeats " + json(plan.injected).dump() + " of its calls: the interval " +
                      (contained ? "contains " : "misses ") +
                      percent(-stats::ln(1.0 + plan.injected)));
  } else if (plan.a == plan.b) {
    word = a["equivalent"].get<bool>() ? "NO-EFFECT" : "INCONCLUSIVE";
    reasons.push_back("A/A, no code difference");
  } else if (tier_fail) {
    word = "REJECT";
    for (std::size_t t = 0, g = 0; t < plan.tiers.size(); ++t) {
      if (!plan.tiers[t].gated) continue;
      if (guard[g++].guard == stats::Guard::kFail) {
        reasons.push_back("tier " + plan.tiers[t].id + " is below " + json(plan.tier_min).dump() +
                          " of A");
      }
    }
  } else if (below) {
    word = "REJECT";
    reasons.push_back("slower: the interval ends at " + percent(interval->interval.high));
  } else if (plan.stage == "smoke") {
    word = "INCONCLUSIVE";
    reasons.push_back("smoke: " + std::to_string(plan.pairs) +
                      " pairs carry no 95 % interval; B won " +
                      std::to_string(a["wins"][0].get<int>()) + " of " + std::to_string(n));
  } else if (plan.stage == "screen") {
    word = "INCONCLUSIVE";
    reasons.push_back("screening makes no claim");
  } else if (plan.underpowered) {
    word = "INCONCLUSIVE";
    reasons.push_back("the plan was started underpowered");
  } else if (above && order_ok) {
    // The micro and window lanes can say no more than this; the bar and the adoption belong to the engine lane.
    word = "STACK-MEMBER";
    reasons.push_back("faster here, engine lane pending");
    if (!tier_pass) reasons.push_back("a tier's lower bound is under the floor: UNPROVEN there");
    if (collapse)
      reasons.push_back("one tier contributes more than ln 2: read the tiers, not the mean");
  } else if (above) {
    word = "INCONCLUSIVE";
    reasons.push_back(
        "the order of the runs matters here, and the crossover interval does not confirm the gain");
  } else if (a["equivalent"].get<bool>()) {
    word = "NO-EFFECT";
    reasons.push_back("the 90 % interval lies within 0.5 % of no difference");
  } else {
    word = "INCONCLUSIVE";
    reasons.push_back("the interval includes no difference");
    if (s_aa && *s_aa > 0.0) {
      if (const auto pairs = stats::pairs_needed(stats::ln(plan.bar), plan.alpha, *s_aa))
        needed = *pairs;
    }
  }
  json verdict{{"word", word}, {"reasons", reasons}, {"pairs_needed", needed}};
  return {{"analysis", a}, {"aa", aa_out}, {"verdict", verdict}};
}

std::string verdict_sentence(const json& record) {
  const json& plan = record.at("plan").at("body");
  const json& a = record.at("analysis");
  const json& v = record.at("verdict");
  std::string text =
      plan.at("op").get<std::string>() + ": " + v.at("word").get<std::string>() + ". ";
  if (!a.at("estimate").is_null()) {
    text += plan.at("b").get<std::string>() + " is " + percent(a["estimate"].get<double>());
    if (!a.at("interval").is_null()) {
      char level[48];
      std::snprintf(level, sizeof level, "%.2f %% exact", a["level"].get<double>() * 100.0);
      text += " [" + percent(a["interval"][0].get<double>()) + ", " +
              percent(a["interval"][1].get<double>()) + "]";
      text += " against " + plan.at("a").get<std::string>() + ", " + level;
    } else {
      text += " against " + plan.at("a").get<std::string>() + ", no interval";
    }
    text += ", " + std::to_string(a.at("d").size()) + " pairs";
    if (!a.at("mde_achieved").is_null())
      text += ", MDE " + percent(a["mde_achieved"].get<double>()).substr(1);
    if (plan.at("family_size").get<int>() > 1)
      text += ", one of " + std::to_string(plan["family_size"].get<int>()) + " confirmed together";
    text += ". ";
  }
  std::string why;
  for (const json& r : v.at("reasons")) why += (why.empty() ? "" : "; ") + r.get<std::string>();
  return text + why + (why.empty() ? "" : ".");
}

}  // namespace assay
