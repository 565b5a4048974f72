#include "bench/kernel_trace.h"

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include <cupti.h>

#include <dlfcn.h>

namespace assay {
namespace {

// The library is looked for at run time: a machine with a driver alone has none, and nothing else needs it.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  std::string absent;
};

Cupti look() {
  Cupti c;
  void* handle = nullptr;
  for (const char* name :
       {"libcupti.so.13", "libcupti.so.12", "libcupti.so", ASSAY_CUPTI_LIBRARY}) {
    if (handle == nullptr) handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    c.absent = "libcupti is not on this machine";
    return c;
  }
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) c.absent = std::string("libcupti lacks ") + name;
  };
  find("cuptiActivityRegisterCallbacks", c.register_callbacks);
  find("cuptiActivityEnable", c.enable);
  find("cuptiActivityDisable", c.disable);
  find("cuptiActivityFlushAll", c.flush);
  find("cuptiActivityGetNextRecord", c.next);
  return c;
}

const Cupti& cupti() {
  static const Cupti c = look();
  return c;
}

// Filled by the library's own thread.
struct Sums {
  std::mutex lock;
  std::size_t kernels = 0;
  double busy_us = 0.0;
};
Sums& sums() {
  static Sums s;
  return s;
}

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

void buffer_wanted(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

void buffer_full(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  CUpti_Activity* record = nullptr;
  const std::lock_guard guard(sums().lock);
  while (cupti().next(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    ++sums().kernels;
    sums().busy_us += static_cast<double>(kernel->end - kernel->start) * 1e-3;
  }
  std::free(buffer);
}

}  // namespace

KernelTrace trace_kernels(const std::function<void()>& work) {
  const Cupti& c = cupti();
  KernelTrace trace{0, 0.0, c.absent};
  if (trace.absent.empty() && (c.register_callbacks(buffer_wanted, buffer_full) != CUPTI_SUCCESS ||
                               c.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS)) {
    trace.absent = "the driver refuses activity records";
  }
  work();
  if (!trace.absent.empty()) return trace;
  (void)c.flush(0);
  (void)c.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  const std::lock_guard guard(sums().lock);
  trace.kernels = std::exchange(sums().kernels, 0);
  trace.busy_us = std::exchange(sums().busy_us, 0.0);
  if (trace.kernels == 0) trace.absent = "no activity record came";
  return trace;
}

}  // namespace assay
