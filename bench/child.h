// The child's side of a pair, and the content rules that child and judge share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/op_info.h"

namespace assay {

struct ChildOptions {
  std::vector<std::string> tiers;  // cases of the op
  int threads = 1;
  std::vector<int> cpus;  // bind to these; empty: leave as is
  Backend backend = Backend::kHost;
  std::string regime = "hot";  // of the plan
};

// Seconds of some groups; a group is some calls on one content, timed together.
struct TimedGroups {
  double wall_s = 0.0;
  double cpu_s = 0.0;
  double wait_s = 0.0;
  double event_s = 0.0;  // on the card's clock; 0 on the host
  int preempted = 0;
  bool inputs_intact = true;
};

// How a backend times one tier.
class TierTimer {
 public:
  virtual ~TierTimer() = default;
  virtual Why ineligible() const = 0;
  virtual void prepare() = 0;
  virtual TimedGroups run(int groups, int group_calls, std::uint64_t seed, bool warm) = 0;
  // What the last group computed, as the judge wants it.
  virtual std::vector<std::vector<std::byte>> outputs() = 0;
  virtual std::uint64_t input_hash() = 0;  // of all inputs, on the content of seed 0
  virtual std::string broken_guard() = 0;
  // A group is at least this long, and its calls are a multiple of what the backend can time.
  virtual double least_group_s(double block_s, double clock_floor_s) const = 0;
  virtual int whole_calls(int calls) const = 0;
  virtual int unit_of(
      int calls) const = 0;           // calls of which a group of whole_calls is a whole number
  virtual nlohmann::json card() = 0;  // what is to be said of the card; null on the host
};

// The clocks of a group other than the wall: CPU time, time without a core, lost cores.
class ThreadClocks {
 public:
  ThreadClocks();
  void add_to(TimedGroups& groups) const;

 private:
  double cpu_s_;
  double waited_s_;
  int switches_;
};

// Answers requests on `in` until `quit` or end of file. Returns the exit code. `switch_value` is what the process
// resolved from its environment; op.find(switch_value) >= 0.
int serve_arm(const OpInfo& op,
              const std::string& switch_value,
              const ChildOptions& options,
              int in,
              int out);

// A problem whose float inputs get new signs for every seed: magnitudes keep their distribution, no value leaves its
// legal range, and 2^n contents share the same pointers. Only the first kFreshElements of a field change, so that
// refreshing stays far cheaper than the call. Element i of every field gets the same sign, so that a float vector and its
// int8 codes keep belonging together (quantisation is odd); fields named *scales, ids, positions and weights stay.
class FreshProblem {
 public:
  static constexpr std::size_t kFreshElements = 16384;
  FreshProblem(const OpInfo& op, std::size_t case_index);
  Problem& problem() const { return *problem_; }
  bool accumulates() const {
    return accumulates_;
  }  // a kInOut field: every call starts from the same state
  // Writes the content of `seed` and poisons the outputs.
  void freshen(std::uint64_t seed);
  // Hash of all input bytes.
  std::uint64_t input_hash() const;
  // The same over what freshen changes, for the per-block check.
  std::uint64_t fresh_hash() const;
  // Copies of every kOut and kInOut field, in field order.
  std::vector<std::vector<std::byte>> copy_outputs() const;

 private:
  struct Fresh {
    std::size_t field;
    std::size_t count;
    std::vector<std::byte> pristine;
  };
  std::unique_ptr<Problem> problem_;
  std::vector<Fresh> fresh_;
  bool accumulates_ = false;
};

// The content of group g of a block.
std::uint64_t group_seed(std::uint64_t block_seed, int group);
// Index of the case, or UserError listing the valid ones.
std::size_t find_case(const OpInfo& op, const std::string& name);

}  // namespace assay
