// Float rows in half for tensor cores, without overflow: a row whose largest value would overflow or vanish in half is
// brought to [1, 2) by a power of two, which whoever multiplies gives back.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/base/device_math.cuh"
#include "kernels/base/launch.cuh"

namespace assay::device {
namespace {

constexpr int kHalveThreads = 256;
// Outside of these a row is scaled: half ends at 65,504 and is coarse below 2^-14.
constexpr float kHalfTooLarge = 16384.0F;
constexpr float kHalfTooSmall = 0.015625F;

// A block a row of x [..][cols]: out = row / scale, scales[row] = scale, nearly always 1. Rows from *count on are left out
// where count is given.
__global__ void __launch_bounds__(kHalveThreads) halve_rows_kernel(
    const float* x, int cols, std::uint16_t* out, float* scales, const std::int32_t* count) {
  __shared__ float warps[kHalveThreads / kWarp];
  if (count != nullptr && static_cast<int>(blockIdx.x) >= *count) return;  // the whole block
  const std::size_t row = blockIdx.x * static_cast<std::size_t>(cols);
  float largest = 0.0F;
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kHalveThreads) {
    largest = fmaxf(largest, fabsf(x[row + static_cast<std::size_t>(c)]));
  }
  largest = warp_max(largest);
  if (lane_id() == 0) warps[warp_id()] = largest;
  __syncthreads();  // every warp's largest is written
  largest = warps[0];
  for (int w = 1; w < kHalveThreads / kWarp; ++w) largest = fmaxf(largest, warps[w]);
  float down = 1.0F;
  float up = 1.0F;
  const std::uint32_t exponent = __float_as_uint(largest) >> 23;  // biased; 255: not finite
  if (exponent < 254 && exponent > 0 && (largest > kHalfTooLarge || largest < kHalfTooSmall)) {
    down = __uint_as_float((254 - exponent) << 23);
    up = __uint_as_float(exponent << 23);
  }
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kHalveThreads) {
    out[row + static_cast<std::size_t>(c)] =
        float_to_half_bits(__fmul_rn(x[row + static_cast<std::size_t>(c)], down));
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = up;
}

inline void halve_rows(const float* x,
                       std::size_t rows,
                       int cols,
                       std::uint16_t* out,
                       float* scales,
                       const std::int32_t* count,
                       Stream stream) {
  launch(halve_rows_kernel,
         dim3(static_cast<unsigned>(rows)),
         dim3(kHalveThreads),
         0,
         stream,
         x,
         cols,
         out,
         scales,
         count);
}

}  // namespace
}  // namespace assay::device
