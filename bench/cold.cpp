#include "bench/cold.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "bench/expert_stream.h"
#include "bench/stats.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kAssumedCache = 64.0 * 1048576.0;
constexpr std::size_t kMemoryBytes = std::size_t{512} << 20;
constexpr std::size_t kMostSets = 4096;
constexpr int kPasses = 2;  // over the half gibibyte
constexpr int kReads = 15;  // of the sets under their regime

template <class F>
double seconds_of(F&& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void read_set(FreshProblem& set) {
  volatile std::uint64_t sum = 0;  // keeps the reads
  for (const Field& f : set.problem().fields()) sum = sum + read_every_byte(f.data, f.bytes());
}

// What memory gives to a plain read as long as a set: pieces of half a gibibyte, each out of the caches since the pass before. The
// upper quartile, because on a machine that others use most pieces are slowed down, and a few may have stayed in a cache.
double memory_rate(std::size_t set_bytes) {
  const std::vector<std::byte> large(kMemoryBytes, std::byte{1});
  const std::size_t piece = std::clamp(set_bytes, std::size_t{1} << 20, std::size_t{64} << 20);
  std::vector<double> rates;
  volatile std::uint64_t sum = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::size_t at = 0; at + piece <= large.size(); at += piece) {
      const double s = seconds_of([&] { sum = sum + read_every_byte(&large[at], piece); });
      rates.push_back(static_cast<double>(piece) / s);
    }
  }
  return quartiles(rates)[2];
}

}  // namespace

double bytes_of(Problem& problem) {
  double sum = 0.0;
  for (const Field& f : problem.fields()) sum += static_cast<double>(f.bytes());
  return sum;
}

int sets_for_turn(double cache_bytes, double set_bytes) {
  return static_cast<int>(std::ceil(kCachesToTurn * cache_bytes / set_bytes));
}

double named_cache_bytes() {
  double largest = 0.0;
  for (int i = 0; i < 8; ++i) {
    std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    double kib = 0.0;
    if (in >> kib) largest = std::max(largest, kib * 1024.0);
  }
  return largest;
}

double host_cache_bytes() {
  const double named = named_cache_bytes();
  return named > 0.0 ? named : kAssumedCache;
}

HostSets::HostSets(const OpInfo& op, std::size_t case_index, const std::string& regime) {
  sets_.push_back(std::make_unique<FreshProblem>(op, case_index));
  set_bytes_ = bytes_of(sets_.front()->problem());
  if (regime == "cold-flush")
    flushed_.resize(static_cast<std::size_t>(kCachesToFlush * host_cache_bytes()));
  if (regime != "cold-rotate") return;
  const auto sets = static_cast<std::size_t>(sets_for_turn(host_cache_bytes(), set_bytes_));
  if (sets > kMostSets)
    throw UserError(
        "tier " + op.case_names.at(case_index) + ": " + std::to_string(sets) +
        " copies of it would be needed to leave the cache; use --regime hot or a larger "
        "tier");
  while (sets_.size() < sets) sets_.push_back(std::make_unique<FreshProblem>(op, case_index));
}

// A line at a time by ordinary stores: memset of so much goes past the caches.
void HostSets::flush() {
  constexpr std::size_t kLine = 64;
  for (std::size_t i = 0; i < flushed_.size(); i += kLine) flushed_[i] ^= std::byte{1};
}

nlohmann::json measure_coldness(const OpInfo& op,
                                std::size_t case_index,
                                const std::string& regime) {
  if (!host_device().avx2) throw HardwareError("the read-only probe needs a CPU with AVX2");
  HostSets sets(op, case_index, regime);
  const double memory = memory_rate(static_cast<std::size_t>(sets.set_bytes()));
  std::vector<double> rates;
  for (int i = 0; i <= kReads; ++i) {
    sets.flush();
    const double s = seconds_of([&] {
      for (std::size_t set = 0; set < sets.size(); ++set) read_set(sets.at(set));
    });
    // The first turn finds what making the sets left in the cache.
    if (i > 0) rates.push_back(sets.set_bytes() * static_cast<double>(sets.size()) / s);
  }
  const double canary = stats::median(rates);
  return {{"cache_bytes", host_cache_bytes()},
          {"sets", sets.size()},
          {"set_bytes", sets.set_bytes()},
          {"memory_bytes_per_s", memory},
          {"canary_bytes_per_s", canary},
          {"ratio", canary / memory}};
}

}  // namespace assay
