// One tensor-core product of halves, float accumulation: d[16][8] += a[16][16] b[16][8] by a warp (mma.sync.m16n8k16, sm_80
// and newer; what calls it is ineligible before). With g = lane / 4 and p = lane % 4, register pairs hold two neighbours:
//   a[0] row g, columns 2p, 2p + 1     a[1] row g + 8     a[2] row g, columns 2p + 8, ..     a[3] row g + 8, the same
//   b[0] rows 2p, 2p + 1 of column g   b[1] rows 2p + 8, 2p + 9
//   d[0], d[1] row g, columns 2p, 2p + 1                  d[2], d[3] row g + 8
#pragma once
#include <cstdint>

#include "kernels/base/device_math.cuh"
#include "kernels/base/launch.cuh"

namespace assay::device {

#if defined(ASSAY_SIMT)
// The same by shuffles, in rising order of the inner index: values, not the hardware's rounding.
inline void mma_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const int g = lane_id() / 4;
  const int p = lane_id() % 4;
  const auto half_of = [](std::uint32_t pair, int i) {
    return half_bits_to_float(static_cast<std::uint16_t>(i == 0 ? pair : pair >> 16));
  };
  for (int k = 0; k < 16; ++k) {
    const int from = k % 8 / 2;  // p of the lane that holds k
    const int high = k / 8;
    const float top = half_of(__shfl_sync(kFullWarp, a[2 * high], 4 * g + from), k % 2);
    const float low = half_of(__shfl_sync(kFullWarp, a[2 * high + 1], 4 * g + from), k % 2);
    const float left = half_of(__shfl_sync(kFullWarp, b[high], 4 * (2 * p) + from), k % 2);
    const float right = half_of(__shfl_sync(kFullWarp, b[high], 4 * (2 * p + 1) + from), k % 2);
    d[0] = __fmaf_rn(top, left, d[0]);
    d[1] = __fmaf_rn(top, right, d[1]);
    d[2] = __fmaf_rn(low, left, d[2]);
    d[3] = __fmaf_rn(low, right, d[3]);
  }
}
#else
__device__ inline void mma_f16(float (&d)[4],
                               const std::uint32_t (&a)[4],
                               const std::uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  (void)d;
  (void)a;
  (void)b;
#endif
}
#endif

// Two floats as a pair of halves, the first in the low bits.
__device__ inline std::uint32_t half_pair(float low, float high) {
  return static_cast<std::uint32_t>(float_to_half_bits(low)) |
         (static_cast<std::uint32_t>(float_to_half_bits(high)) << 16);
}

}  // namespace assay::device
