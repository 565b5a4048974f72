#include "replay/cost.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay::replay {

double CostModel::layer_cpu_us(double chosen, double misses) const {
  const double device = (chosen - misses) * gpu_expert_us;
  const double host = misses > 0.0 ? cpu_handoff_us + misses * cpu_expert_us : 0.0;
  return layer_us + std::max(device, host);
}

double CostModel::layer_stage_us(double chosen, double misses) const {
  const double device = chosen * gpu_expert_us;
  const double copy =
      misses * (copy_latency_us + static_cast<double>(expert_bytes) / copy_bytes_per_us);
  return layer_us + device + copy - copy_overlap_share * std::min(device, copy);
}

CostModel load_cost_model(const std::string& path) {
  using nlohmann::json;
  const std::string text = read_file(path, std::size_t{1} << 20);
  const auto refuse = [&](const std::string& what) { throw InputError(path + ": " + what); };
  const json j = json::parse(text, nullptr, false);
  if (j.is_discarded() || !j.is_object()) refuse("byte 0: not a JSON object");
  if (!j.contains("schema") || j["schema"] != "assay-cost")
    refuse("key \"schema\": expected \"assay-cost\"");
  if (!j.contains("schema_version") || j["schema_version"] != 1)
    refuse("key \"schema_version\": this build reads 1");
  if (!j.contains("constants") || !j["constants"].is_object())
    refuse("key \"constants\" is missing");
  CostModel m;
  m.name = j.contains("name") && j["name"].is_string() ? j["name"].get<std::string>() : path;
  m.card = j.contains("card") && j["card"].is_string() ? j["card"].get<std::string>() : "";
  double bytes = 0.0;
  const std::map<std::string, double*> keys = {{"token_us", &m.token_us},
                                               {"layer_us", &m.layer_us},
                                               {"gpu_expert_us", &m.gpu_expert_us},
                                               {"cpu_handoff_us", &m.cpu_handoff_us},
                                               {"cpu_expert_us", &m.cpu_expert_us},
                                               {"copy_latency_us", &m.copy_latency_us},
                                               {"copy_bytes_per_us", &m.copy_bytes_per_us},
                                               {"expert_bytes", &bytes},
                                               {"copy_overlap_share", &m.copy_overlap_share}};
  for (const auto& [key, value] : j["constants"].items()) {
    const auto it = keys.find(key);
    if (it == keys.end()) refuse("key \"constants." + key + "\" is not known");
    if (!value.is_number() || !(value.get<double>() >= 0.0) ||
        !std::isfinite(value.get<double>())) {
      refuse("key \"constants." + key + "\" must be a number, not negative");
    }
    *it->second = value.get<double>();
  }
  for (const auto& [key, unused] : keys) {
    static_cast<void>(unused);
    if (!j["constants"].contains(key)) refuse("key \"constants." + key + "\" is missing");
  }
  if (m.copy_bytes_per_us <= 0.0) refuse("key \"constants.copy_bytes_per_us\" must be above 0");
  if (m.copy_overlap_share > 1.0) refuse("key \"constants.copy_overlap_share\" must be at most 1");
  if (bytes < 1.0) refuse("key \"constants.expert_bytes\" must be at least 1");
  m.expert_bytes = static_cast<std::uint64_t>(bytes);
  return m;
}

ExpectedSpeed expected_speed(const CostModel& model, const RunResult& result, std::uint32_t top_k) {
  double cpu_us = 0.0;
  double stage_us = 0.0;
  for (std::size_t m = 0; m < result.histogram.size(); ++m) {
    const auto groups = static_cast<double>(result.histogram[m]);
    cpu_us += groups * model.layer_cpu_us(top_k, static_cast<double>(m));
    stage_us += groups * model.layer_stage_us(top_k, static_cast<double>(m));
  }
  const auto steps = static_cast<double>(result.steps);
  return {1e6 / (cpu_us / steps + model.token_us), 1e6 / (stage_us / steps + model.token_us)};
}

std::vector<std::uint32_t> allocate_slots(const std::vector<DistanceCounts>& layers,
                                          std::uint64_t total,
                                          std::uint32_t least) {
  const std::size_t n = layers.size();
  std::uint64_t most = 0;
  for (const auto& l : layers) most += l.at.size() - 1;
  if (total < n * std::uint64_t{least}) {
    throw UserError(std::to_string(total) + " slots cannot give " + std::to_string(n) + " layers " +
                    std::to_string(least) + " each");
  }
  const auto slots = static_cast<std::size_t>(std::min(total, most));
  constexpr std::uint64_t kImpossible = ~std::uint64_t{0} / 4;
  // best[s]: misses of the layers so far with s slots in all; choice[l][s]: what layer l took.
  std::vector<std::uint64_t> best(slots + 1, kImpossible);
  best[0] = 0;
  std::vector<std::vector<std::uint32_t>> choice(n, std::vector<std::uint32_t>(slots + 1, 0));
  for (std::size_t l = 0; l < n; ++l) {
    const auto objects = static_cast<std::uint32_t>(layers[l].at.size() - 1);
    std::vector<std::uint64_t> misses(std::size_t{objects} + 1, 0);
    for (std::uint32_t c = 0; c <= objects; ++c) misses[c] = layers[l].misses(c);
    std::vector<std::uint64_t> next(slots + 1, kImpossible);
    for (std::size_t s = 0; s <= slots; ++s) {
      if (best[s] >= kImpossible) continue;
      for (std::uint32_t c = std::min(least, objects); c <= objects && s + c <= slots; ++c) {
        const std::uint64_t m = best[s] + misses[c];
        if (m < next[s + c]) {
          next[s + c] = m;
          choice[l][s + c] = c;
        }
      }
    }
    best = std::move(next);
  }
  // More slots never miss more, so the full budget is among the best; ties leave none unused.
  std::vector<std::uint32_t> result(n);
  std::size_t s = slots;
  while (best[s] >= kImpossible) --s;
  for (std::size_t l = n; l-- > 0;) {
    result[l] = choice[l][s];
    s -= result[l];
  }
  return result;
}

}  // namespace assay::replay
