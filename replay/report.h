// A replay's outcome as one JSON document (docs/replay.md describes every key) and as a table.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "replay/cost.h"
#include "replay/curves.h"
#include "replay/facts.h"
#include "replay/replay.h"

namespace assay::replay {

struct ReportRow {
  RunSpec spec;
  RunResult result;
  double residency = 0.0;  // as asked for, else slots / objects
  bool in_sample = false;
  Interval interval;  // of misses per step
  // Share of the gap between LRU and Belady at the same size and partition, when both were run.
  std::optional<double> gap_closed;
  Interval gap_interval;
};

struct Allocation {
  double residency = 0.0;
  std::uint64_t slots = 0;
  std::vector<std::uint32_t> layers;    // slots of each
  double even_misses_per_step = 0.0;    // LRU, the same slots in every layer
  double chosen_misses_per_step = 0.0;  // LRU, the slots above
  std::string chosen_on;                // "train", "all", ..: the split whose curves chose
  std::string scored_on;
};

struct Report {
  std::vector<std::string> paths;
  TraceGeometry geometry;
  std::string label;
  std::uint64_t steps = 0;
  std::size_t conversations = 0;
  bool flat = false;
  bool sealed = true;
  std::uint64_t expert_bytes = 0;
  std::uint64_t warmup = 0;
  std::uint64_t seed = 1;
  int resamples = 0;
  std::string split = "all";
  std::vector<ReportRow> rows;
  std::vector<MissCurve> curves;
  std::vector<Allocation> allocations;
  std::optional<RoutingFacts> facts;
  std::optional<CostModel> cost;
};

// Fills intervals and gap shares of the rows.
void score_rows(Report& report);
std::string to_json(const Report& report);
std::string to_table(const Report& report);
std::string facts_json(const RoutingFacts& facts);

}  // namespace assay::replay
