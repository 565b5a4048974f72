// What a sitting costs besides its arms' work: the harness measures itself, and stores that in the record (key harness).
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace assay {

// Wall seconds of a sitting by what they went into. What is left of the whole is orchestration: pipes, orders, clocks of the
// machine, the record and its analysis.
struct Spent {
  double wall_s = 0.0;
  double start_s = 0.0;  // arms starting: process, inputs, layouts
  double work_s = 0.0;   // arms at work: calibration, fresh content, warm-up, timed groups
  double timed_s = 0.0;  // of that inside their clocks
  double check_s = 0.0;  // outputs copied and held against the reference
  double end_s = 0.0;    // arms ending, inputs compared once more
};

// Adds the time it lives to a part.
class Spending {
 public:
  explicit Spending(double& part) : part_(part), began_(Clock::now()) {}
  ~Spending() { part_ += std::chrono::duration<double>(Clock::now() - began_).count(); }
  Spending(const Spending&) = delete;
  Spending& operator=(const Spending&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& part_;
  Clock::time_point began_;
};

// The parts, the orchestration's share of the wall time, and on the host the clock's own cost inside the timed regions of a block
// (empty groups, as the child measured them), the largest of all blocks, from the record's runs and arms.
nlohmann::json harness_json(const Spent& spent, const nlohmann::json& record);
// What of a record's `harness` does not follow from its parts and runs; a record without one is older than the key.
std::vector<std::string> harness_faults(const nlohmann::json& record);

}  // namespace assay
