#include "bench/load_record.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

namespace assay {
namespace {

using nlohmann::json;
using Pairs = std::vector<std::vector<std::int64_t>>;

// All whole numbers below 2^53 in any honest record, so the doubles are exact but for the one division.
std::int64_t slope_per_10000(const Pairs& points) {
  const auto n = static_cast<double>(points.size());
  double sx = 0.0, sy = 0.0, sxx = 0.0, sxy = 0.0;
  for (const auto& p : points) {
    const auto x = static_cast<double>(p[0]);
    const auto y = static_cast<double>(p[1]);
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  const double slope = std::floor(10'000.0 * (n * sxy - sx * sy) / (n * sxx - sx * sx));
  return std::abs(slope) < 1e15 ? static_cast<std::int64_t>(slope) : INT64_MAX;  // also for NaN
}

// Nothing where the raw values are not of the kind that `take` needs.
std::optional<std::int64_t> taken(const json& raw, const std::string& take) {
  if (take == "count") {
    if (!raw.contains("count")) return std::nullopt;
    return raw["count"].get<std::int64_t>();
  }
  const bool of_series = take == "growth" || take == "spread" || take == "slope_per_10000";
  const char* kind = of_series ? "series" : "bins";
  if (!raw.contains(kind)) return std::nullopt;
  const auto pairs = raw[kind].get<Pairs>();
  if (take == "growth") return pairs.back()[1] - pairs.front()[1];
  if (take == "slope_per_10000") return slope_per_10000(pairs);
  if (take == "spread") {
    const auto [low, high] = std::minmax_element(
        pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a[1] < b[1]; });
    return (*high)[1] - (*low)[1];
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i][1] < 1 || (i > 0 && pairs[i][0] <= pairs[i - 1][0])) return std::nullopt;
    total += pairs[i][1];
  }
  if (take == "min") return pairs.front()[0];
  const std::int64_t rank = total * (take == "p50" ? 50 : 99) / 100;
  std::int64_t seen = 0;
  for (const auto& p : pairs) {
    seen += p[1];
    if (seen > rank) return p[0];
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> load_record_faults(const json& record) {
  std::vector<std::string> faults;
  bool good = true;
  std::size_t index = 0;
  for (const json& goal : record.at("goals")) {
    const std::string where = "goals/" + std::to_string(index++) + "/";
    const std::string of = goal.at("of");
    const json& raw = record.at("raw");
    if (!raw.contains(of) || goal.contains("at_most") == goal.contains("at_least")) {
      faults.push_back(where + "of: no raw values of that name, or not one bound");
      continue;
    }
    const auto value = taken(raw.at(of), goal.at("take"));
    if (!value || goal.at("value") != *value)
      faults.push_back(where + "value: stored " + goal.at("value").dump() + ", recomputed " +
                       (value ? std::to_string(*value) : "nothing"));
    const bool met = value && (goal.contains("at_most") ? *value <= goal["at_most"]
                                                        : *value >= goal["at_least"]);
    if (goal.at("met") != met) faults.push_back(where + "met: not what value and bound say");
    good = good && met;
  }
  if (record.at("good") != good) faults.push_back("good: not what the goals say");
  return faults;
}

}  // namespace assay
