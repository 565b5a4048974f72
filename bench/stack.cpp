#include "bench/stack.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "bench/needles.h"
#include "bench/stats.h"
#include "bench/tiers.h"
#include "kernels/base/error.h"
#include "kernels/base/json_schema.h"
#include "kernels/base/record.h"
#include "kernels/base/rng.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

using nlohmann::json;

std::uint64_t seed_of(const StackPlan& plan, const char* what) {
  return std::stoull(sha256_hex(what + stack_plan_sha256(plan)).substr(0, 16), nullptr, 16);
}

template <class T>
void shuffle(std::vector<T>& items, Rng& rng) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

json optional_json(const std::optional<double>& v) { return v ? json(*v) : json(nullptr); }

// The median speed of a tier in a run, 1 / s.
double speed(const json& run, const std::string& tier) {
  return 1.0 / stats::median(run.at("samples").at(tier).get<std::vector<double>>());
}

// ln of the first arm's speed over the second's, the tiers weighted.
double log_ratio(const StackPlan& plan, const json& above, const json& below) {
  double sum = 0.0;
  for (const PlanTier& t : plan.tiers)
    sum += t.weight * stats::ln(speed(above, t.id) / speed(below, t.id));
  return sum;
}

std::string percent(double log_ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.2f %%", (stats::exp(log_ratio) - 1.0) * 100.0);
  return text;
}

// Runs of one round by arm; empty when one is missing or did not end well.
std::vector<const json*> round_of(const json& record,
                                  const std::vector<StackArm>& arms,
                                  int round) {
  std::vector<const json*> found(arms.size(), nullptr);
  for (const json& run : record.at("runs")) {
    if (run.at("round") != round || run.at("status") != "ok") continue;
    for (std::size_t a = 0; a < arms.size(); ++a) {
      if (run.at("code") == std::string(1, arms[a].code)) found[a] = &run;
    }
  }
  if (std::find(found.begin(), found.end(), nullptr) != found.end()) found.clear();
  return found;
}

// What speaks against every number of the record.
std::vector<std::string> breaches(const json& record, const std::vector<StackArm>& arms) {
  std::vector<std::string> out;
  const auto add = [&](const std::string& text) {
    if (std::find(out.begin(), out.end(), text) == out.end()) out.push_back(text);
  };
  for (const json& run : record.at("runs")) {
    const std::string where = "run " + std::to_string(run.at("run").get<int>());
    if (run.at("status") == "failed") {
      add(where + " failed: " + run.at("reason").get<std::string>());
      continue;
    }
    for (const StackArm& arm : arms) {
      if (run.at("code") != std::string(1, arm.code)) continue;
      if (run.at("switches_seen") != json(arm.switches) ||
          run.at("switches_echo") != json(arm.switches))
        add(where + ": the process did not run the switches of its arm");
      for (const json& armed : run.at("armed")) {
        if (armed.at("selected").get<int>() == 0)
          add(armed.at("op").get<std::string>() + "=" + armed.at("variant").get<std::string>() +
              " was never selected");
      }
    }
  }
  return out;
}

// What S and stock said to the needle checks, judged; null for a plan without, or when an arm gave no answer.
json needles_of(const json& record,
                const StackPlan& plan,
                const std::vector<StackArm>& arms,
                std::vector<std::string>& invalid) {
  if (plan.needles.empty()) return nullptr;
  json said[2];
  for (const json& read : record.value("needles", json::array())) {
    for (const std::size_t a : {0U, 1U}) {
      if (read.at("code") != std::string(1, arms[a].code)) continue;
      said[a] = read.at("checks");
      if (read.at("reason") != "")
        invalid.push_back("needle checks failed: " + read["reason"].get<std::string>());
      else if (read.at("switches_seen") != json(arms[a].switches) ||
               read.at("switches_echo") != json(arms[a].switches))
        invalid.emplace_back("needle checks: the process did not run the switches of its arm");
    }
  }
  for (const std::string& id : plan.needles) {
    for (const json& checks : said) {
      if (checks.is_object() && checks.contains(id)) continue;
      invalid.push_back("needle check " + id + " was not made in both arms");
      return nullptr;
    }
  }
  return judge_needles(said[1], said[0], needle_bound(plan.numerics, plan.backend));
}

// Why the needle checks speak against S; empty: they do not.
std::string needle_loss(const json& n) {
  if (n.is_null()) return "";
  const auto count = [&](const char* key) { return std::to_string(n.at(key).get<int>()); };
  if (n.at("agree") != n.at("checks"))
    return "needle checks: only " + count("agree") + " of " + count("checks") +
           " answers are within the bound of stock's";
  if (n.at("found_stack").get<int>() < n.at("found_stock").get<int>())
    return "needle checks: finds " + count("found_stack") + " of " + count("checks") +
           ", stock finds " + count("found_stock");
  return "";
}

}  // namespace

json stack_plan_json(const StackPlan& p) {
  json tiers = json::array();
  for (const PlanTier& t : p.tiers)
    tiers.push_back({{"id", t.id}, {"endpoint", t.endpoint}, {"weight", t.weight}});
  json out{{"schema", "assay-stack-plan"},
           {"schema_version", "1.0.0"},
           {"members", p.members},
           {"question", p.question},
           {"backend", p.backend},
           {"lane", p.lane},
           {"numerics", p.numerics},
           {"threads", p.threads},
           {"model", p.model},
           {"tiers", tiers},
           {"rounds", p.rounds},
           {"burn_in_rounds", p.burn_in_rounds},
           {"repeat", p.repeat},
           {"alpha", p.alpha},
           {"bars", {{"effect", p.bar}, {"tier_min", p.tier_min}}}};
  if (!p.needles.empty()) out["needles"] = p.needles;  // absent elsewhere: plans keep their hashes
  return out;
}

StackPlan stack_plan_from_json(const json& d, const std::string& name) {
  StackPlan p;
  p.members = d.at("members").get<std::map<std::string, std::string>>();
  p.question = d.at("question");
  p.backend = d.at("backend");
  p.lane = d.at("lane");
  p.numerics = d.at("numerics");
  p.threads = d.at("threads");
  p.model = d.at("model");
  for (const json& t : d.at("tiers"))
    p.tiers.push_back({t.at("id"), t.at("endpoint"), t.at("weight"), true});
  p.needles = d.value("needles", p.needles);
  p.rounds = d.at("rounds");
  p.burn_in_rounds = d.at("burn_in_rounds");
  p.repeat = d.at("repeat");
  p.alpha = d.at("alpha");
  p.bar = d.at("bars").at("effect");
  p.tier_min = d.at("bars").at("tier_min");
  if (p.members.empty()) throw InputError(name + "/members: none");
  const int arms = static_cast<int>(stack_arms(p).size());
  if (arms > 20) throw InputError(name + "/members: more than 18");
  if (p.rounds < 1 || p.rounds > stats::kMaxPairs || rounds_for(arms, p.rounds) != p.rounds)
    throw InputError(name + "/rounds: " + std::to_string(p.rounds) +
                     " is no multiple of the orders of " + std::to_string(arms) + " arms");
  if (!(p.alpha > 0.0 && p.alpha <= 0.2)) throw InputError(name + "/alpha: above 0, at most 0.2");
  return p;
}

std::string stack_plan_sha256(const StackPlan& plan) {
  return sha256_hex(canonical_json(stack_plan_json(plan)));
}

void check_stack_plan(const StackPlan& p) {
  const auto require = [](bool good, const std::string& what) {
    if (!good) throw UserError("plan: " + what);
  };
  double sum = 0.0;
  std::set<std::string> names;
  for (const PlanTier& t : p.tiers) {
    const EngineTier& tier = engine_tier(t.id);
    require((tier.endpoint == "window") == (p.lane == "window"),
            "tier " + t.id + " is not of lane " + p.lane);
    require(t.endpoint == tier.endpoint,
            "tier " + t.id + ": its endpoint is " + tier.endpoint + ", not " + t.endpoint);
    require(t.weight > 0.0, "tier " + t.id + ": weight above 0");
    require(names.insert(t.id).second, "tier " + t.id + " is named twice");
    sum += t.weight;
  }
  require(std::fabs(sum - 1.0) < 1e-9, "tier weights sum to " + std::to_string(sum) + ", not to 1");
  names.clear();
  for (const std::string& id : p.needles)
    require(names.insert(needle_check(id).id).second, "needle check " + id + " is named twice");
  require(p.rounds >= 8, "rounds " + std::to_string(p.rounds) + ": 8 to 60");
  require(p.burn_in_rounds >= 0 && p.burn_in_rounds <= 8, "burn_in_rounds: 0 to 8");
  require(p.repeat >= 1 && p.repeat <= 100, "repeat: 1 to 100");
  require(p.threads >= 0 && p.threads <= 256, "threads: 0 to 256");
  require(p.bar > 1.0 && p.bar <= 10.0, "bars/effect: above 1, at most 10");
  require(p.tier_min > 0.0 && p.tier_min < 1.0, "bars/tier_min: between 0 and 1");
}

StackPlan read_stack_plan(const json& document, const std::string& name) {
  const json& schema =
      schema_named("assay-stack")->at("properties").at("plan").at("properties").at("body");
  const auto faults = schema_faults(schema, document);
  if (!faults.empty()) throw InputError(name + ": " + faults.front());
  StackPlan plan = stack_plan_from_json(document, name);
  try {
    check_stack_plan(plan);
  } catch (const UserError& e) {
    throw InputError(name + ": " + e.what());
  }
  return plan;
}

std::vector<StackArm> stack_arms(const StackPlan& plan) {
  std::vector<StackArm> arms{{'A', "", plan.members}, {'A', "*", {}}};
  if (plan.question == "drop_one" && plan.members.size() > 1) {
    for (const auto& [op, variant] : plan.members) {
      arms.push_back({'A', op, plan.members});
      arms.back().switches.erase(op);
    }
  }
  std::vector<char> codes;
  for (std::size_t i = 0; i < arms.size(); ++i) codes.push_back(static_cast<char>('A' + i));
  Rng rng(seed_of(plan, "codes:"));
  shuffle(codes, rng);
  for (std::size_t i = 0; i < arms.size(); ++i) arms[i].code = codes[i];
  return arms;
}

std::vector<std::vector<int>> stack_schedule(const StackPlan& plan) {
  const auto orders = stats::williams_orders(static_cast<int>(stack_arms(plan).size()));
  Rng rng(seed_of(plan, "order:"));
  std::vector<std::vector<int>> schedule;
  for (int i = 0; i < plan.burn_in_rounds; ++i)
    schedule.push_back(orders[rng.below(orders.size())]);
  for (int done = 0; done < plan.rounds;) {
    auto block = orders;
    shuffle(block, rng);
    for (auto& order : block) schedule.push_back(std::move(order));
    done += static_cast<int>(orders.size());
  }
  return schedule;
}

int rounds_for(int arms, int least) {
  const int orders = arms % 2 == 0 ? arms : 2 * arms;
  return (least + orders - 1) / orders * orders;
}

json analyse_stack(const json& record) {
  const StackPlan plan = stack_plan_from_json(record.at("plan").at("body"), "plan/body");
  const auto arms = stack_arms(plan);
  const std::size_t members = arms.size() - 2;
  std::vector<double> whole;
  std::vector<std::vector<double>> tiers(plan.tiers.size());
  std::vector<std::vector<double>> absence(members);
  bool same_text = true;
  for (int r = plan.burn_in_rounds; r < plan.burn_in_rounds + plan.rounds; ++r) {
    const auto runs = round_of(record, arms, r);
    if (runs.empty()) continue;
    whole.push_back(log_ratio(plan, *runs[0], *runs[1]));
    for (std::size_t t = 0; t < tiers.size(); ++t)
      tiers[t].push_back(
          stats::ln(speed(*runs[0], plan.tiers[t].id) / speed(*runs[1], plan.tiers[t].id)));
    for (std::size_t j = 0; j < members; ++j)
      absence[j].push_back(log_ratio(plan, *runs[0], *runs[j + 2]));
    same_text = same_text && runs[0]->at("written") == runs[1]->at("written");
  }
  json a{{"rounds", whole.size()},
         {"d", whole},
         {"same_text", same_text},
         {"estimate", nullptr},
         {"speedup", nullptr},
         {"interval", nullptr},
         {"level", nullptr},
         {"bootstrap_lower", nullptr},
         {"tiers", json::array()},
         {"members", json::array()}};
  std::vector<std::string> invalid = breaches(record, arms);
  const json needles = needles_of(record, plan, arms, invalid);
  if (!needles.is_null()) a["needles"] = needles;
  const std::string lost = needle_loss(needles);
  if (static_cast<int>(whole.size()) < plan.rounds)
    invalid.push_back("only " + std::to_string(whole.size()) + " of " +
                      std::to_string(plan.rounds) + " planned rounds are complete");
  json kept = json::array();
  json dropped = json::array();
  for (const auto& [op, variant] : plan.members) kept.push_back(op);
  if (!lost.empty()) {  // nothing is timed then
    return {{"analysis", a},
            {"verdict",
             {{"word", "REJECT"},
              {"reasons", json::array({lost})},
              {"kept", json::array()},
              {"dropped", json::array()}}}};
  }
  if (whole.empty()) {
    return {{"analysis", a},
            {"verdict",
             {{"word", "INVALID"},
              {"reasons", invalid},
              {"kept", json::array()},
              {"dropped", json::array()}}}};
  }
  const double estimate = stats::hodges_lehmann(whole);
  const auto interval = stats::signed_rank_interval(whole, plan.alpha);
  const auto boot = stats::bootstrap_median(whole, plan.alpha, seed_of(plan, "bootstrap:"));
  a["estimate"] = estimate;
  a["speedup"] = stats::exp(estimate);
  if (interval) {
    a["interval"] = {interval->interval.low, interval->interval.high};
    a["level"] = interval->level;
  }
  a["bootstrap_lower"] = boot.percentile.low;
  const auto guard = stats::tier_guard(tiers, plan.tier_min, plan.alpha);
  bool pass = true;
  bool fail = false;
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    a["tiers"].push_back({{"id", plan.tiers[t].id},
                          {"median_ratio", guard[t].median_ratio},
                          {"lower", optional_json(guard[t].lower)},
                          {"guard", stats::to_string(guard[t].guard)}});
    pass = pass && guard[t].guard == stats::Guard::kPass;
    fail = fail || guard[t].guard == stats::Guard::kFail;
  }
  if (members > 0) {
    kept = json::array();
    const auto contributions = stats::drop_one(absence, plan.alpha);
    for (std::size_t j = 0; j < members; ++j) {
      a["members"].push_back({{"op", arms[j + 2].without},
                              {"variant", plan.members.at(arms[j + 2].without)},
                              {"c", absence[j]},
                              {"estimate", contributions[j].estimate},
                              {"lower", optional_json(contributions[j].lower)},
                              {"keep", contributions[j].keep}});
      (contributions[j].keep ? kept : dropped).push_back(arms[j + 2].without);
    }
  }
  std::vector<std::string> reasons = invalid;
  std::string word = "INVALID";
  if (invalid.empty()) {
    const bool above = interval && interval->interval.low > 0.0;
    if (fail || (interval && interval->interval.high < 0.0)) {
      word = "REJECT";
      reasons.emplace_back(fail ? "a tier's median is below the floor" : "slower than stock");
    } else if (!above) {
      word = stats::equivalent(whole, 0.005) ? "NO-EFFECT" : "INCONCLUSIVE";
      reasons.emplace_back("the interval includes no difference");
    } else {
      word = "STACK-MEMBER";
      if (plan.lane == "window") reasons.emplace_back("faster here, engine lane pending");
      if (estimate < stats::ln(plan.bar)) reasons.emplace_back("under the bar");
      if (!(boot.percentile.low > 0.0))
        reasons.emplace_back("the bootstrap's lower end is not above zero");
      if (!pass) reasons.emplace_back("a tier is UNPROVEN");
      // Agreement with stock shows that nothing is lost; ADOPT asks that the needles are found.
      if (plan.lane == "engine" && needles.is_null()) {
        reasons.emplace_back("needle checks were not part of the rounds, so no ADOPT");
      } else if (plan.lane == "engine" && needles.at("found_stack") != needles.at("checks")) {
        reasons.push_back("the model finds " + needles.at("found_stack").dump() + " of " +
                          needles.at("checks").dump() + " needles, with stock " +
                          needles.at("found_stock").dump() + ", so no ADOPT");
      }
      if (reasons.empty()) word = "ADOPT";
    }
  } else {
    kept = json::array();
    dropped = json::array();
  }
  return {
      {"analysis", a},
      {"verdict", {{"word", word}, {"reasons", reasons}, {"kept", kept}, {"dropped", dropped}}}};
}

std::vector<std::string> stack_faults(const json& record) {
  std::vector<std::string> faults;
  try {
    const StackPlan plan = stack_plan_from_json(record.at("plan").at("body"), "plan/body");
    if (record.at("plan").at("sha256") != stack_plan_sha256(plan))
      return {"plan/sha256: the plan was edited"};
    const auto arms = stack_arms(plan);
    const auto schedule = stack_schedule(plan);
    for (const json& read : record.value("needles", json::array())) {
      if (read.at("sha256") != sha256_hex(canonical_json(read.at("checks"))).substr(0, 16))
        faults.push_back("needles/" + read.at("code").get<std::string>() +
                         "/checks: altered after they were written");
    }
    int slot = 0;
    for (const json& run : record.at("runs")) {
      const std::string where = "runs/" + std::to_string(slot);
      const auto round = static_cast<std::size_t>(slot) / arms.size();
      if (round >= schedule.size()) {
        faults.push_back(where + ": the plan has no such run");
        break;
      }
      const int arm = schedule[round][static_cast<std::size_t>(slot) % arms.size()];
      if (run.at("round") != static_cast<int>(round) || run.at("run") != slot ||
          run.at("code") != std::string(1, arms[static_cast<std::size_t>(arm)].code))
        faults.push_back(where + ": not the plan's order");
      if (run.at("sha256") != sha256_hex(canonical_json(run.at("samples"))).substr(0, 16))
        faults.push_back(where + "/samples: a sample was altered after it was written");
      ++slot;
    }
    if (!faults.empty()) return faults;
    const json again = analyse_stack(record);
    for (const char* part : {"analysis", "verdict"}) {
      for (const auto& [key, value] : again.at(part).items()) {
        if (!record.at(part).contains(key) || record[part][key] != value)
          faults.push_back(std::string(part) + "/" + key + ": recomputed " +
                           value.dump().substr(0, 60));
      }
    }
  } catch (const InputError& e) {
    faults.emplace_back(e.what());
  } catch (const json::exception& e) {
    faults.emplace_back(std::string("runs: ") + e.what());
  }
  return faults;
}

std::string stack_sentence(const json& record) {
  const json& a = record.at("analysis");
  std::string members;
  for (const auto& [op, variant] : record.at("plan").at("body").at("members").items())
    members += (members.empty() ? "" : ", ") + op + "=" + variant.get<std::string>();
  std::string text = record.at("verdict").at("word").get<std::string>() + ": " + members;
  if (!a.at("estimate").is_null()) {
    text += " together " + percent(a["estimate"]) + " against stock";
    if (!a.at("interval").is_null())
      text += " [" + percent(a["interval"][0]) + ", " + percent(a["interval"][1]) + "]";
    text += ", " + std::to_string(a.at("rounds").get<int>()) + " rounds of fresh processes";
  }
  for (const json& m : a.at("members")) {
    text += "; without " + m.at("op").get<std::string>() + " " +
            percent(-m.at("estimate").get<double>()) +
            (m.at("keep").get<bool>() ? "" : ", which does not hurt: dropped");
  }
  for (const json& r : record.at("verdict").at("reasons")) text += "; " + r.get<std::string>();
  return text;
}

}  // namespace assay
