// Misses at every cache size from one pass: LRU and the optimum (Belady's rule) are stack algorithms in both modes, because
// after any group the cache of c slots holds the c first entries of one order that does not depend on c.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "replay/policy.h"
#include "replay/replay.h"

namespace assay::replay {

// Misses by size. slots[i] counts the whole cache; under Partition::kLayer it is a multiple of the layers.
struct MissCurve {
  std::string kind;  // "lru", "opt", "shards"
  Mode mode = Mode::kGroup;
  Partition partition = Partition::kGlobal;
  std::uint64_t steps = 0;     // counted
  std::uint64_t accesses = 0;  // counted
  std::vector<std::uint64_t> slots;
  std::vector<double> misses;  // parallel; whole numbers for "lru" and "opt"
  std::vector<double> error;   // "shards": standard error of `misses` over its samples
  double worst_error_share =
      0.0;  // "shards" beside "lru": largest distance to the exact miss ratio over all sizes
  double mean_error_share = 0.0;  // and the mean one
};

// How often every stack distance was met, of one cache. at[0] counts first uses; a cache of c slots misses at[0] plus at[d]
// for all d > c.
struct DistanceCounts {
  std::vector<std::uint64_t> at;  // [objects + 1]
  std::uint64_t misses(std::uint64_t slots) const;
};

// Feeds on blocks in order. For partition kLayer one stack a layer, else one for all.
class CurvePass {
 public:
  virtual ~CurvePass() = default;
  // Counts from step `warmup` on.
  virtual void run(const Block& block, std::uint64_t warmup) = 0;
  virtual const std::vector<DistanceCounts>& counts() const = 0;  // one a cache
};
// setup: as of setup_for with any legal capacity.
std::unique_ptr<CurvePass> make_lru_pass(const Setup& setup);
std::unique_ptr<CurvePass> make_opt_pass(const Setup& setup);  // needs Block::next
// LRU distances of the objects whose hash falls below `rate`, scaled by 1 / rate (Waldspurger et al., FAST 2015).
std::unique_ptr<CurvePass> make_shards_pass(const Setup& setup, double rate, std::uint64_t seed);

struct CurveOptions {
  Mode mode = Mode::kGroup;
  Partition partition = Partition::kGlobal;
  std::uint64_t warmup = 0;
  bool lru = true;
  bool opt = false;
  double shards_rate = 0.0;  // 0: none
};
struct CurveSet {
  std::vector<MissCurve> curves;
  std::vector<DistanceCounts>
      lru_layers;  // partition kLayer: the counts of every layer, for slot allocation
  std::vector<DistanceCounts> opt_layers;
};
CurveSet compute_curves(Sequence& sequence,
                        const CurveOptions& options,
                        const ProgressFn& progress = {});

}  // namespace assay::replay
