#include "bench/campaign.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/stats.h"
#include "kernels/base/build_id.h"
#include "kernels/base/device_info.h"

namespace assay {
namespace {

using nlohmann::json;

std::time_t utc_seconds(const std::string& text) {
  std::tm parts{};
  return ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr ? 0 : ::timegm(&parts);
}

bool same_build(const json& record, const Standing& now) {
  const json& build = record.at("build");
  return record.at("machine").at("card") == now.card && build.at("commit") == now.commit &&
         build.at("tree_sha256") == now.tree_sha256;
}

}  // namespace

std::vector<std::string> lanes_of(const OpInfo& op) {
  std::vector<std::string> lanes;
  if (op.make_problem == nullptr || op.case_names.empty()) return lanes;
  for (const char* lane : {"exact", "fast"}) {
    for (std::size_t i = 0; i < op.case_names.size(); ++i) {
      if (numerics_of(*op.make_problem(i, 0)) != lane) continue;
      lanes.emplace_back(lane);
      break;
    }
  }
  if (lanes.empty()) lanes.emplace_back("any");
  return lanes;
}

Standing standing_now(bool scratch, const DeviceInfo& device) {
  return {device.name,
          build_id().commit,
          build_id().tree_sha256,
          executable_sha256(),
          scratch,
          to_string(device.backend)};
}

bool stands_for(const json& record, const Plan& plan, const Standing& now) {
  if (record.at("schema") != "abg-result" || record.at("plan").at("sha256") != plan_sha256(plan) ||
      record.at("scratch") != now.scratch || !same_build(record, now))
    return false;
  for (const json& arm : record.at("arms")) {
    const std::string& variant = arm.at("label") == "A" ? plan.a : plan.b;
    if (arm.at("source_digest") != source_digest(plan.op, variant)) return false;
    // An arm that never started has no executable; its failure was this build's all the same.
    const std::string exe = arm.at("exe_sha256");
    if (!exe.empty() && exe != now.exe_sha256) return false;
  }
  return true;
}

const json* first_standing(const std::vector<json>& records,
                           const Plan& plan,
                           const Standing& now) {
  const json* first = nullptr;
  for (const json& r : records) {
    if (!stands_for(r, plan, now)) continue;
    if (first == nullptr || r.at("recorded_utc") < first->at("recorded_utc")) first = &r;
  }
  return first;
}

const json* standing_parity(const std::vector<json>& records,
                            const std::string& op,
                            const std::string& variant,
                            const Standing& now) {
  const json* latest = nullptr;
  for (const json& r : records) {
    if (r.at("schema") != "assay-parity" || r.at("op") != op || r.at("variant") != variant ||
        r.at("backend") != now.backend || r.at("exe_sha256") != now.exe_sha256 ||
        !same_build(r, now) || r.at("source").at("digest") != source_digest(op, variant))
      continue;
    if (latest == nullptr || r.at("recorded_utc") >= latest->at("recorded_utc")) latest = &r;
  }
  return latest;
}

std::vector<std::size_t> candidates(const std::vector<Screened>& screened, std::size_t most) {
  std::vector<std::size_t> best;
  for (std::size_t i = 0; i < screened.size(); ++i) {
    if (screened[i].sound && screened[i].estimate > 0.0) best.push_back(i);
  }
  std::stable_sort(best.begin(), best.end(), [&](std::size_t x, std::size_t y) {
    return screened[x].estimate > screened[y].estimate;
  });
  if (best.size() > most) best.resize(most);
  return best;
}

std::optional<Plan> confirmation_plan(const Plan& screen,
                                      int family_size,
                                      const std::vector<double>& aa_pool,
                                      int asked) {
  Plan plan = screen;
  plan.stage = "confirm";
  plan.family_size = family_size;
  const std::vector<int> ladder =
      asked > 0 ? std::vector<int>{asked} : std::vector<int>{12, 16, 24};
  for (const double bar : {screen.bar, 1.05, 1.2}) {
    plan.bar = std::max(screen.bar, bar);
    for (const int pairs : ladder) {
      plan.pairs = pairs;
      const PlannedPower power = planned_power(plan, aa_pool);
      if (!power.known || power.mde <= stats::ln(plan.bar)) return plan;
    }
  }
  return std::nullopt;
}

std::string not_armed_because(const json& record) {
  const std::string word = record.at("verdict").at("word");
  if (word != "STACK-MEMBER" && word != "ADOPT") {
    const json& reasons = record.at("verdict").at("reasons");
    return word + (reasons.empty() ? "" : ": " + reasons.front().get<std::string>());
  }
  const json& analysis = record.at("analysis");
  for (const json& t : analysis.at("tiers")) {
    if (!t.at("guard").is_null() && t["guard"] != "PASS")
      return "tier " + t.at("id").get<std::string>() + " is " + t["guard"].get<std::string>();
  }
  const double bar = record.at("plan").at("body").at("bars").at("effect");
  if (!(analysis.at("speedup").get<double>() >= bar)) return "under the bar of the plan";
  return "";
}

double sitting_seconds(const json& record) {
  const json& runs = record.at("runs");
  if (runs.empty()) return 0.0;
  return static_cast<double>(utc_seconds(record.at("recorded_utc")) -
                             utc_seconds(runs.front().at("t_start")));
}

}  // namespace assay
