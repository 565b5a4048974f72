// How close experts_host comes to the speed of reading: experts drawn at random from more memory than any cache or TLB
// holds, each variant beside a read-only probe of the same bytes in the same round.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/blocks.h"

namespace assay {

struct StreamOptions {
  double gib = 1.0;  // memory the experts are drawn from
  int threads = 2;
  int rounds = 15;
  int calls = 6;  // a round and arm
  BlockType type = BlockType::kQ4_0;
  int hidden = 2816;
  int width = 704;
  int top_k = 8;           // experts a call
  bool huge_pages = true;  // asked for; the system decides
  bool cpu_time = false;   // instead of wall clock: one thread on a busy machine
};

struct StreamArm {
  std::string variant;
  std::vector<double> of_probe;  // speed over the probe's beside it, one a round
};

struct StreamResult {
  int experts = 0;
  double expert_bytes = 0.0;
  std::vector<double> probe_bytes_per_s;
  std::vector<StreamArm> arms;  // the variants with a layout of their own that run here
  std::uint64_t checksum = 0;   // of the bytes that the probe read
};

// Lower quartile, median, upper quartile: the values at those places of the sorted list, none interpolated.
std::array<double, 3> quartiles(std::vector<double> values);

// UserError for a type without codes, HardwareError where no variant or no probe runs.
StreamResult measure_expert_stream(const StreamOptions& options,
                                   const std::function<void(int rounds_done)>& progress = {});

// Reads every byte once, asking for it as far ahead as the kernels do; the sum keeps the compiler from dropping the loads. AVX2.
std::uint64_t read_every_byte(const std::byte* p, std::size_t bytes);

}  // namespace assay
