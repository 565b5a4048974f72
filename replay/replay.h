// Runs policies over a sequence and accounts for their misses.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "replay/policy.h"
#include "replay/sequence.h"

namespace assay::replay {

struct RunSpec {
  PolicyChoice policy;
  Mode mode = Mode::kGroup;
  Partition partition = Partition::kGlobal;
  std::uint64_t slots = 0;       // whole cache; kLayer gives slots / layers to each layer
  std::string describe() const;  // "lru, group, global, 384 slots"
};

// Misses of one run after the warm-up.
struct RunResult {
  std::uint64_t slots = 0;  // in use: kLayer rounds down to a multiple of layers
  std::uint64_t steps = 0;  // counted
  std::uint64_t accesses = 0;
  std::uint64_t misses = 0;
  std::vector<std::uint64_t>
      histogram;  // [top_k + 1] groups (layer, step) by their misses; empty groups left out
  std::vector<std::uint64_t> layer_misses;  // [layers]
  struct PerConversation {
    std::uint64_t steps = 0;
    std::uint64_t accesses = 0;
    std::uint64_t misses = 0;
  };
  std::vector<PerConversation> conversations;  // parallel to Sequence::conversations()

  double misses_per_step() const {
    return static_cast<double>(misses) / static_cast<double>(steps);
  }
  double hit_rate() const {
    return 1.0 - static_cast<double>(misses) / static_cast<double>(accesses);
  }
  // The smallest m such that at least `share` of the groups have at most m misses.
  std::uint64_t percentile(double share) const;
};

// 95 % interval of a ratio of sums over conversations (misses per step, gap closed, ..), from `resamples` seeded resamplings
// of whole conversations. statistic(weights) is called with how often each conversation was drawn.
struct Interval {
  double low = 0.0;
  double high = 0.0;
};
Interval bootstrap(std::size_t conversations,
                   std::uint64_t seed,
                   int resamples,
                   const std::function<double(const std::vector<std::uint32_t>&)>& statistic);
// Of misses per step. One conversation: both ends are the mean.
Interval misses_interval(const RunResult& result, std::uint64_t seed, int resamples);

using ProgressFn = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Runs all specs in one pass. The first `warmup` steps fill the caches and are not counted. UserError: no policy, no counted
// step, a capacity of 0, in group mode one below top-k, a policy that has no such mode. `train` serves static-train.
std::vector<RunResult> run_policies(Sequence& sequence,
                                    Sequence* train,
                                    const std::vector<RunSpec>& specs,
                                    std::uint64_t warmup,
                                    const ProgressFn& progress = {});

// What a simulator of this spec is built for; the checks of run_policies.
Setup setup_for(Sequence& sequence, Sequence* train, const RunSpec& spec);

}  // namespace assay::replay
