// The harness's own test: many experiments on the synthetic device, and how often the answer was right. CI runs it reduced,
// `scripts/nightly` in full; the outcome is a record.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "bench/ab.h"
#include "bench/stats.h"
#include "bench/synthetic.h"

namespace assay {

struct CalibrationCell {
  std::string scenario;
  int pairs = 0;
  double effect = 0.0;  // true log speed-up
  int repetitions = 0;
  int covered = 0;             // interval contains the truth
  int different = 0;           // interval excludes 0
  int wins = 0;                // lower end above 0
  int covered_percentile = 0;  // the same of the bootstrap's two intervals
  int covered_bca = 0;
  std::vector<stats::Interval>
      head;  // intervals of the first repetitions: what a verifier makes again
  double coverage() const { return static_cast<double>(covered) / repetitions; }
  double power() const { return static_cast<double>(wins) / repetitions; }
};
// Each repetition is a whole sitting: plan, order, runs, analysis. With 4 pairs it is the source protocol's, abg4, and the
// interval is its own.
CalibrationCell run_calibration_cell(
    const NoiseModel& noise, int pairs, double effect, int repetitions, std::uint64_t seed);

struct CampaignCell {
  int variants = 0;
  int campaigns = 0;
  int with_claim = 0;  // campaigns of no-ops in which at least one was claimed
};
// Screens `variants` no-ops at 8 pairs, confirms the best three at 12 with fresh data, at pair sd 1 %.
CampaignCell run_null_campaigns(int variants, int campaigns, std::uint64_t seed);

// What a sitting on the synthetic device is given: a passing parity, no peer, a card that says so.
AbInputs synthetic_inputs();

// The full table as a document (schema assay-calibration): every scenario x n in {8, 12, 16, 24}, abg4, A/A, power, campaigns.
// Cells are independent of each other and spread over `threads`; the numbers do not depend on how many.
nlohmann::json calibration_table(int repetitions,
                                 std::uint64_t seed,
                                 int threads,
                                 const std::function<void(std::size_t, std::size_t)>& progress);

// What of a stored table does not follow from its own seed: the first repetitions of every cell are run again, bit for bit, and
// its counts must be possible. Empty: nothing. A table made by other statistics than this build's is only counted.
std::vector<std::string> calibration_faults(const nlohmann::json& record);
// Which of bench.md's marks a table misses, in words; empty: it meets them all.
std::vector<std::string> calibration_misses(const nlohmann::json& record);

}  // namespace assay
