// What misses cost in time. A cost model is a versioned JSON file whose constants were measured on a card (`assay probe`,
// docs/replay.md); nothing here holds a measured number.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "replay/curves.h"
#include "replay/replay.h"

namespace assay::replay {

struct CostModel {
  std::string name;
  std::string card;
  // Microseconds unless the name says otherwise.
  double token_us = 0.0;  // per token outside the layers: embedding, head, sampling
  double layer_us = 0.0;  // per layer whatever the misses: attention, router, dense part, combine
  double gpu_expert_us = 0.0;    // one resident expert on the device
  double cpu_handoff_us = 0.0;   // per layer with at least one miss: activations over, results back
  double cpu_expert_us = 0.0;    // one missing expert computed where it lies, all threads
  double copy_latency_us = 0.0;  // one expert's copy before its first byte
  double copy_bytes_per_us = 0.0;  // host to device
  std::uint64_t expert_bytes = 0;
  double copy_overlap_share =
      0.0;  // of the shorter of copy and device work that runs beside the other, 0..1

  // Time of one layer whose group of `chosen` experts has `misses` of them off the device.
  double layer_cpu_us(double chosen,
                      double misses) const;  // misses computed on the CPU beside the device
  double layer_stage_us(double chosen, double misses) const;  // misses copied first
};
// InputError naming the key: missing, unknown, not a number, negative, or another schema version.
CostModel load_cost_model(const std::string& path);

struct ExpectedSpeed {
  double cpu_tokens_per_s = 0.0;
  double stage_tokens_per_s = 0.0;
};
// From the distribution of misses per (layer, step): a layer waits for its own misses, so the mean is not enough.
ExpectedSpeed expected_speed(const CostModel& model, const RunResult& result, std::uint32_t top_k);

// Slots per layer that minimise the sum of misses over layers for `total` slots (exact, by dynamic programming over the layers'
// curves). Every layer gets at least `least` (top-k in group mode, else 1) and at most its number of experts. UserError when
// `total` is below layers * least.
std::vector<std::uint32_t> allocate_slots(const std::vector<DistanceCounts>& layers,
                                          std::uint64_t total,
                                          std::uint32_t least);

}  // namespace assay::replay
