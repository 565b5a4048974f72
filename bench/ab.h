// The paired driver: plan -> order -> runs -> record. A pair is one fresh process of each arm; the two are alive together
// and take turns block by block, so that they never run at the same time and meet the same drift.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/arm.h"
#include "bench/plan.h"
#include "kernels/base/op_info.h"

namespace assay {

// What a sitting is given besides its plan.
struct AbInputs {
  nlohmann::json
      parity;  // {outcome, record_sha256, class, worst_rel_l2, max_ulp, cases}; outcome must be "pass"
  nlohmann::json peer;                // {name, ..} or {name: null, reason}
  nlohmann::json machine;             // see machine_record
  nlohmann::json cold;                // by tier, see measure_coldness; null when hot or on a card
  nlohmann::json source_a, source_b;  // kernels/base/record.h source_json
  std::vector<double>
      aa_pool;  // A/A log ratios of earlier records of the same card, lane, op and tiers
  std::vector<std::string> aa_pool_records;  // their ids
  bool scratch = false;                      // watermark: not citable
  std::function<void(std::size_t, std::size_t)> progress;
};

// Runs the plan and returns the unsealed record (schema abg-result), analysis and verdict included. A failing arm ends the
// sitting early and is in the record; only what is wrong with the machine itself throws.
nlohmann::json run_ab(const Plan& plan, Device& device, const AbInputs& inputs);

// Planned MDE in log units from a pool of A/A differences; nothing for fewer than 3.
struct PlannedPower {
  bool known = false;
  double sd = 0.0;
  double mde = 0.0;
};
PlannedPower planned_power(const Plan& plan, const std::vector<double>& aa_pool);

// "exact" or "fast", as the problem's shape says; empty for a shape without a numerics lane.
std::string numerics_of(const Problem& problem);

// The cases that speak for an op when the plan names none: at most three, those with the most work among the eligible, finite
// ones of one numerics lane (default: fast, else exact); cases named after a model's shape ("26b_..", "tiny_..") before
// all others. Both variants must be eligible. UserError when there is none.
std::vector<PlanTier> default_tiers(const OpInfo& op,
                                    const std::string& a,
                                    const std::string& b,
                                    const std::string& numerics,
                                    const DeviceInfo& device = host_device());

// CPU, kernel, governor, cache sizes: what a record says about its machine; of a card also what it gives in this sitting (key gpu).
// Never a host name.
nlohmann::json machine_record(const DeviceInfo& device = host_device());

// results/<card>/<date>_<commit>, or results/scratch for scratch runs, below `root`.
std::string results_folder(const std::string& root, const std::string& card, bool scratch);

}  // namespace assay
