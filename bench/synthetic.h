// A device without hardware: a seeded noise model behind the driver's interface, so that the whole pipeline (plan, order,
// runs, record, verdict) runs in CI with a known truth. It never prints a speed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/arm.h"
#include "bench/plan.h"

namespace assay {

// Where the noise comes from. All sizes are standard deviations on the log scale of one pair's ratio, unless said.
struct NoiseModel {
  std::string name;
  double pair_sd = 0.01;     // start-to-start noise; each start gets pair_sd / sqrt(2)
  double tail = 0.0;         // share of starts with a spike
  double spike_mean = 0.04;  // mean of the (exponential) spike, slowing
  double drift = 0.0;        // linear slow-down over the whole sitting, log units
  double order_bonus = 0.0;  // gain of whichever arm starts first in its pair
  double heavy = 0.0;  // > 0: Student t noise with so many degrees of freedom, scaled to pair_sd
  double autocorrelation = 0.0;  // of the machine's state from pair to pair; common to both arms
};
// The eight scenarios of bench.md 2, all at the given pair sd. Larger order effects than the one here widen the interval
// beyond its level (they add spread, but no error, to a balanced order): calibration_table reports one such cell apart.
std::vector<NoiseModel> noise_scenarios(double pair_sd);

// B's true log speed-up over A is `effect`, the same on every tier.
std::unique_ptr<Device> make_synthetic_device(const Plan& plan,
                                              const NoiseModel& noise,
                                              double effect,
                                              std::uint64_t seed);

}  // namespace assay
