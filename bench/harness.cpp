#include "bench/harness.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

namespace assay {

using nlohmann::json;

json harness_json(const Spent& spent, const json& record) {
  const double rest = spent.wall_s - spent.start_s - spent.work_s - spent.check_s - spent.end_s;
  json out{{"wall_s", spent.wall_s},
           {"start_s", spent.start_s},
           {"work_s", spent.work_s},
           {"timed_s", spent.timed_s},
           {"check_s", spent.check_s},
           {"end_s", spent.end_s},
           {"orchestration_share", spent.wall_s > 0.0 ? json(rest / spent.wall_s) : json(nullptr)},
           {"clock_us_a_block", nullptr},
           {"clock_share_of_block", nullptr}};
  if (record.at("plan").at("body").at("backend") != "host") return out;
  std::map<std::string, double> floor_s;  // by arm's code
  for (const json& arm : record.at("arms")) floor_s[arm.at("code")] = arm.at("clock_floor_s");
  double most_s = 0.0;
  double most_share = 0.0;
  for (const json& run : record.at("runs")) {
    for (const auto& [tier, samples] : run.at("samples").items()) {
      const double group_calls = samples.at("group_calls");
      for (std::size_t i = 0; i < samples.at("wall").size(); ++i) {
        const double cost =
            samples.at("calls")[i].get<double>() / group_calls * floor_s[run.at("arm")];
        most_s = std::max(most_s, cost);
        most_share = std::max(most_share, cost / samples["wall"][i].get<double>());
      }
    }
  }
  out["clock_us_a_block"] = most_s * 1e6;
  if (std::isfinite(most_share)) out["clock_share_of_block"] = most_share;
  return out;
}

std::vector<std::string> harness_faults(const json& record) {
  std::vector<std::string> faults;
  if (!record.contains("harness")) return faults;
  const json& h = record["harness"];
  const auto part = [&](const char* key) { return h.at(key).get<double>(); };
  const json again = harness_json({part("wall_s"),
                                   part("start_s"),
                                   part("work_s"),
                                   part("timed_s"),
                                   part("check_s"),
                                   part("end_s")},
                                  record);
  for (const auto& [key, value] : again.items()) {
    if (h.at(key) != value)
      faults.push_back("harness/" + key + ": does not follow from the parts and runs");
  }
  if (part("start_s") + part("work_s") + part("check_s") + part("end_s") > part("wall_s"))
    faults.emplace_back("harness: the parts are more than the whole");
  return faults;
}

}  // namespace assay
