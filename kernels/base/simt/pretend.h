// What the CPU executor claims to be: the newest portable feature set, a small card. Tests claim others, before the first question
// about the card.
#pragma once
#include <cstddef>

#include "kernels/base/simt/cuda_runtime_api.h"

namespace assay::simt {

struct Claim {
  cudaError_t error = cudaSuccess;  // of counting the cards
  int cards = 1;
  int major = 9;
  int minor = 0;
  std::size_t memory_bytes = std::size_t{4} << 30;
  cudaError_t wait = cudaSuccess;  // what waiting for a stream gives
};
extern Claim claim;

}  // namespace assay::simt
