#include "bench/card_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/card_timer.h"
#include "bench/stats.h"
#include "bench/timing_cases.h"
#include "kernels/base/card_probe.h"
#include "kernels/base/record.h"
#include "kernels/base/wait_limit.h"

namespace assay {
namespace {

using nlohmann::json;

constexpr int kGroups = 20;  // samples of a row
constexpr double kGroupS = 2e-3;

struct Wanted {
  const char* op;
  const char* variant;
  const char* case_name;
  const char* regime;
};
constexpr Wanted kOnCard[] = {
    {"gemv_quant", "dp4a", "full_head_fast", "cold-rotate"},
    {"gemv_quant", "dp4a", "full_window_qkv_fast", "cold-rotate"},
    {"gemv_quant", "dp4a", "full_window_output_fast", "cold-rotate"},
    {"gemv_quant", "dp4a", "full_shared_gate_up_fast", "cold-rotate"},
    {"experts_decode", "grouped_dp4a", "full_one_token_fast", "cold-rotate"},
    {"attention_decode", "split_kv", "full_window_1024", "cold-rotate"},
    {"attention_decode", "split_kv", "full_global_4096", "cold-rotate"},
    {"router_topk", "device", "full_one_token", "hot"},
    {"doorbell_publish", "stock", "26b_one_miss", "hot"},
    {"doorbell_publish", "threads256", "26b_one_miss", "hot"},
    {"doorbell_publish", "fused_topk", "26b_one_miss", "hot"},
};
// What the CPU executor can do in seconds: the path, not the numbers.
constexpr Wanted kExecuted[] = {
    {"gemv_quant", "dp4a", "tokens_1_fast", "hot"},
    {"router_topk", "device", "one_expert", "hot"},
    {"doorbell_publish", "fused_topk", "one_of_one", "hot"},
};

std::span<const Wanted> wanted() {
  if (gpu::simulated()) return kExecuted;
  return kOnCard;
}

// The value at or above a share of the samples.
double percentile(std::vector<double> v, double share) {
  std::sort(v.begin(), v.end());
  const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(v.size())));
  return v[std::min(v.size() - 1, at > 0 ? at - 1 : 0)];
}
json spread(const std::vector<double>& v) {
  return {{"p50", percentile(v, 0.5)}, {"p99", percentile(v, 0.99)}, {"samples", v.size()}};
}

json row_of(const Wanted& w, double read_bytes_per_s) {
  const bool head = std::string_view(w.case_name) == "full_head_fast";
  const OpInfo& op = head ? with_head() : with_timing_cases(find_op(w.op));
  const int variant = op.find(w.variant);
  CardTimer timer(op, find_case(op, w.case_name), variant, w.regime);
  timer.prepare();
  int calls = timer.whole_calls(1);
  const double first = timer.run(1, calls, 1, true).event_s / calls;
  calls = timer.whole_calls(
      std::max(1, gpu::simulated() ? 1 : static_cast<int>(kGroupS / std::max(first, 1e-7))));
  std::vector<double> us;
  const int groups = gpu::simulated() ? 3 : kGroups;
  for (int g = 0; g < groups; ++g) {
    us.push_back(timer.run(1, calls, static_cast<std::uint64_t>(g) + 2, true).event_s * 1e6 /
                 calls);
  }
  const double median = stats::median(us);
  const double rate = timer.bytes_moved() * 1e6 / median;
  return {
      {"op", w.op},
      {"variant", w.variant},
      {"case", w.case_name},
      {"calls_a_group", calls},
      {"time_us", us},
      {"median_us", median},
      {"moved_bytes", timer.bytes_moved()},
      {"bytes_per_s", rate},
      {"of_read", rate / read_bytes_per_s},
      {"card", timer.card()},
      {"source_digest", source_json(w.op, w.variant).at("digest")},
      {"peer",
       {{"name", nullptr},
        {"reason",
         "no outside program was run on this op, format and shape in this session; the yardstick "
         "is the read bandwidth beside it"}}}};
}

}  // namespace

json measure_card(const std::function<void(int, int)>& progress) {
  const json machine = machine_record(gpu::device()).at("gpu");  // refuses without a card
  const auto list = wanted();
  const int total = static_cast<int>(list.size()) + 1;
  progress(0, total);
  const WaitLimit limit("the handshake");
  const gpu::Handshake h = gpu::simulated() ? gpu::handshake(128, 2) : gpu::handshake(100'000, 200);
  json handshake{{"kernel_round_trip_us", spread(h.round_trip_us)},
                 {"host_round_trip_us", nullptr},
                 {"store_to_observe_us", nullptr},
                 {"layer_us", spread(h.layer_us)},
                 {"nodes", h.nodes},
                 {"host_calls_between_nodes", h.host_calls_between_nodes}};
  if (!h.host_round_trip_us.empty()) {
    // The two clocks have no common zero: one way is half of there and back.
    std::vector<double> one_way = h.host_round_trip_us;
    for (double& us : one_way) us /= 2.0;
    handshake["host_round_trip_us"] = spread(h.host_round_trip_us);
    handshake["store_to_observe_us"] = spread(one_way);
  }
  const double read = machine.at("read_bytes_per_s");
  json rows = json::array();
  for (const Wanted& w : list) {
    progress(static_cast<int>(rows.size()) + 1, total);
    rows.push_back(row_of(w, read));
  }
  return {{"machine", machine}, {"handshake", handshake}, {"rows", rows}};
}

std::string card_probe_fault(const json& probe) {
  const double read = probe.at("machine").at("read_bytes_per_s");
  std::size_t index = 0;
  for (const json& row : probe.at("rows")) {
    const std::string where = "card_probe/rows/" + std::to_string(index++);
    const double median = stats::median(row.at("time_us").get<std::vector<double>>());
    if (row.at("median_us") != median) return where + "/median_us: not that of time_us";
    const double rate = row.at("moved_bytes").get<double>() * 1e6 / median;
    if (row.at("bytes_per_s") != rate || row.at("of_read") != rate / read)
      return where + ": rate and share do not follow from bytes and time";
    if (row.at("peer").at("name").is_null() && !row["peer"].contains("reason"))
      return where + "/peer: name is null without a reason";
  }
  return "";
}

}  // namespace assay
