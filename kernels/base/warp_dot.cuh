// One row of a quantised matrix times one activation row by a warp, in the orders of quant_dot.h: the host's bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/base/blocks.cuh"
#include "kernels/base/launch.cuh"

namespace assay::device {

// The eight words of one activation block; codes at a multiple of 32 from a 16-byte aligned start.
__device__ inline void load_q8_block(const std::int8_t* codes, int b, int (&q)[8]) {
  const auto* from = reinterpret_cast<const int4*>(codes) + 2 * static_cast<std::ptrdiff_t>(b);
  const int4 low = from[0];
  const int4 high = from[1];
  q[0] = low.x;
  q[1] = low.y;
  q[2] = low.z;
  q[3] = low.w;
  q[4] = high.x;
  q[5] = high.y;
  q[6] = high.z;
  q[7] = high.w;
}

// dot_exact: lane j is chain j, and warp_sum is the halving tree. Every lane gets the sum.
template <BlockType T>
__device__ inline float dot_exact_warp(const std::byte* row, const float* x, int n) {
  float chain = 0.0F;
#pragma unroll 4
  for (int c = lane_id(); c < n; c += kWarp) chain = __fmaf_rn(element<T>(row, c), x[c], chain);
  return warp_sum(chain);
}

// dot_fast: a lane takes a block of every 32; then lane l adds to chain l mod 8 the terms of blocks l mod 8, + 8, + 16 and
// + 24 of those in rising order, four times in the warp, and xor 1, 2, 4 is the pairwise tree. Blocks past the end add a
// zero term, which changes no bit because a chain that starts at +0 is never -0. Every lane gets the sum.
template <BlockType T>
__device__ inline float dot_fast_warp(const std::byte* row,
                                      const std::int8_t* codes,
                                      const std::uint16_t* scales,
                                      int n) {
  constexpr int kChains = 8;
  const int lane = lane_id();
  const int blocks = n / kQ8Block;
  float chain = 0.0F;
  for (int base = 0; base < blocks; base += kWarp) {
    const int b = base + lane;
    float scale = 0.0F;
    float product = 0.0F;
    float minimum = 0.0F;
    float offset = 0.0F;
    if (b < blocks) {
      int q[8];
      load_q8_block(codes, b, q);
      const BlockTerm term = block_term<T>(row, b, q);
      const float dx = half_bits_to_float(scales[b]);
      scale = __fmul_rn(term.scale, dx);
      product = static_cast<float>(term.product);
      if constexpr (Format<T>::kMinimum) {
        minimum = __fmul_rn(term.minimum, dx);
        offset = static_cast<float>(term.offset);
      }
    }
#pragma unroll
    for (int i = 0; i < kWarp; i += kChains) {
      const int from = lane % kChains + i;
      chain = __fmaf_rn(
          __shfl_sync(kFullWarp, scale, from), __shfl_sync(kFullWarp, product, from), chain);
      if constexpr (Format<T>::kMinimum) {
        chain = __fmaf_rn(
            __shfl_sync(kFullWarp, minimum, from), __shfl_sync(kFullWarp, offset, from), chain);
      }
    }
  }
  for (int h = 1; h < kChains; h *= 2) {
    chain = __fadd_rn(chain, __shfl_xor_sync(kFullWarp, chain, h));
  }
  return chain;
}

}  // namespace assay::device
