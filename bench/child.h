// The child's side of a pair, and the content rules that child and judge share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/op_info.h"

namespace assay {

struct ChildOptions {
  std::vector<std::string> tiers;  // cases of the op
  int threads = 1;
  std::vector<int> cpus;  // bind to these; empty: leave as is
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
  Problem& problem() { return *problem_; }
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
