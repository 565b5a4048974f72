// What an eligibility rule may ask of a device.
#pragma once
#include <cstddef>
#include <string>

#include "kernels/base/stream.h"

namespace assay {

struct DeviceInfo {
  Backend backend = Backend::kHost;
  std::string name;  // CPU model or GPU name; "card" in records
  // host
  bool avx2 = false;         // with FMA and F16C
  bool avx512_vnni = false;  // with F, BW, VL, DQ
  int threads = 1;           // hardware threads
  // cuda
  int cc = 0;  // compute capability, 90 for 9.0
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;  // opt-in limit
  int l2_bytes = 0;
  std::size_t memory_bytes = 0;
};

// The CPU this process runs on.
const DeviceInfo& host_device();

}  // namespace assay
