// A named range in a profiler's time line (NVTX), on the host side of a launch: phases and ops of the engine. Costs
// nanoseconds while no profiler watches, and nothing in a build without CUDA.
#pragma once

namespace assay {

class Range {
 public:
  explicit Range(const char* name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace assay
