#include "kernels/base/device_info.h"

#include <fstream>
#include <thread>

#include <cpuid.h>

#include "kernels/base/registry.h"

namespace assay {
namespace {

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with("model name")) {
      const auto colon = line.find(':');
      if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
    }
  }
  return "unknown CPU";
}

// Asked of the CPU directly: clang 14's __builtin_cpu_supports does not know "f16c".
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

DeviceInfo read_host() {
  DeviceInfo d;
  d.backend = Backend::kHost;
  d.name = cpu_model();
  __builtin_cpu_init();
  d.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
  d.avx512_vnni =
      d.avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0;
  d.threads = static_cast<int>(std::thread::hardware_concurrency());
  return d;
}

}  // namespace

const DeviceInfo& host_device() {
  static const DeviceInfo device = read_host();
  return device;
}

const char* to_string(Backend backend) { return backend == Backend::kHost ? "host" : "cuda"; }
const char* to_string(Numerics numerics) { return numerics == Numerics::kExact ? "exact" : "fast"; }

const char* to_string(Stage stage) {
  switch (stage) {
    case Stage::kStock:
      return "stock";
    case Stage::kTrial:
      return "trial";
    case Stage::kKept:
      return "kept";
    case Stage::kRejected:
      return "rejected";
  }
  return "?";
}

const char* to_string(Exactness exactness) {
  switch (exactness) {
    case Exactness::kBitwise:
      return "bitwise";
    case Exactness::kSelection:
      return "selection";
    case Exactness::kBounded:
      return "bounded";
    case Exactness::kModelLevel:
      return "model-level";
  }
  return "?";
}

}  // namespace assay
