// The kernels that a piece of work runs, as the profiling library (CUPTI) reports them.
#pragma once
#include <cstddef>
#include <functional>
#include <string>

namespace assay {

struct KernelTrace {
  std::size_t kernels = 0;
  double busy_us = 0.0;  // sum of their durations
  std::string absent;    // why nothing was traced; empty when it was
};
// Runs `work`, which must wait for the card itself. It runs in any case.
KernelTrace trace_kernels(const std::function<void()>& work);

}  // namespace assay
