// When a call finds its weights in memory and not in a cache: what both backends mean by the cold regimes, and the host's sets.
// hot: one buffer set, as warm as the caches keep it. cold-rotate: calls take turns over so many equal sets that a set has left
// the last-level cache when it is its turn again. cold-flush (host): before each timed call as much is written as pushes
// everything else out.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "bench/child.h"

namespace assay {

inline constexpr double kCachesToTurn = 3.0;   // bytes of a turn over the last-level cache
inline constexpr double kCachesToFlush = 2.0;  // bytes written over it
// A plain read under the regime may be this much faster than memory at most; else the regime is not cold.
inline constexpr double kCanaryLimit = 1.03;

// Of all fields.
double bytes_of(Problem& problem);
// Sets whose bytes together are kCachesToTurn caches.
int sets_for_turn(double cache_bytes, double set_bytes);

// The largest cache that the system names, in bytes; 0 where it names none.
double named_cache_bytes();
// That, or where none is named more than most machines have; measure_coldness then judges the assumption.
double host_cache_bytes();

// The buffers of one tier on the host under a regime.
class HostSets {
 public:
  // UserError for a tier so small that its sets would be too many.
  HostSets(const OpInfo& op, std::size_t case_index, const std::string& regime);
  std::size_t size() const { return sets_.size(); }
  FreshProblem& at(std::size_t i) const { return *sets_[i % sets_.size()]; }
  double set_bytes() const { return set_bytes_; }
  // Pushes the caches out; nothing outside cold-flush.
  void flush();

 private:
  double set_bytes_ = 0.0;
  std::vector<std::unique_ptr<FreshProblem>> sets_;
  std::vector<std::byte> flushed_;
};

// The canary: a plain read of the sets, in turns or behind a flush, against a plain read
// of half a gibibyte. {cache_bytes, sets,
// set_bytes, memory_bytes_per_s, canary_bytes_per_s, ratio}; above kCanaryLimit the tier is not cold. HardwareError without AVX2.
nlohmann::json measure_coldness(const OpInfo& op,
                                std::size_t case_index,
                                const std::string& regime);

}  // namespace assay
