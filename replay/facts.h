// What a trace says about routing before any policy is run.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "replay/replay.h"

namespace assay::replay {

struct RoutingFacts {
  std::uint64_t steps = 0;
  std::uint64_t accesses = 0;
  std::uint32_t objects_used = 0;
  // Of the experts a layer chose, the share it had chosen in the step before (same conversation).
  double adjacent_share = 0.0;
  std::vector<double> layer_adjacent_share;  // [layers]
  // {share of objects, share of accesses that the most used ones of them take}
  std::vector<std::pair<double, double>> skew;
  // Steps from one use of an object to the next: percentiles {share, steps}; first uses are left out.
  std::vector<std::pair<double, std::uint64_t>> reuse_steps;
  // {window in steps, mean share of all objects used in a window}
  std::vector<std::pair<std::uint64_t, double>> working_set;
};
RoutingFacts routing_facts(Sequence& sequence, const ProgressFn& progress = {});

}  // namespace assay::replay
