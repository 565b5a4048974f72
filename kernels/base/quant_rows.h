// How vector kernels on the host see a product with a quantised matrix.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/blocks.h"

namespace assay {

// One activation block of the fast lane as the kernels read it.
struct Q8Record {
  std::int8_t codes[32];
  float scale;       // the fp16 scale, widened
  std::int32_t sum;  // of the codes
};

// Tokens that a matrix product takes at a time.
inline constexpr int kTokenPass = 512;

// Workspace of a product: the activations of one pass as records; none in the exact lane.
inline std::size_t activation_bytes(int tokens, int cols, bool q8) {
  if (!q8) return 0;
  return static_cast<std::size_t>(std::min(tokens, kTokenPass)) *
         static_cast<std::size_t>(cols / kQ8Block) * sizeof(Q8Record);
}

}  // namespace assay
