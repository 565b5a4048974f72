// fixed_math.h for kernels: the same sequences of IEEE operations, so that device and host give the same bits (a GPU test
// compares them). Every operation is an intrinsic with stated rounding, which no compiler contracts.
#pragma once
#include <cstdint>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/base/fixed_math.h"

namespace assay::device {

struct Reduced {
  float q;
  std::uint32_t rounded;
};
__device__ inline Reduced reduce(float x) {
  // Scalars, not the array: device code may use a host constant's value but not its address.
  constexpr float kExp1 = fixed_math::kExp[1];
  constexpr float kExp2 = fixed_math::kExp[2];
  constexpr float kExp3 = fixed_math::kExp[3];
  constexpr float kExp4 = fixed_math::kExp[4];
  constexpr float kExp5 = fixed_math::kExp[5];
  const float t = __fmaf_rn(x, fixed_math::kLog2E, fixed_math::kRound);
  const float n = __fsub_rn(t, fixed_math::kRound);
  const float r = __fmaf_rn(n, -fixed_math::kLn2Low, __fmaf_rn(n, -fixed_math::kLn2High, x));
  constexpr float kExp0 = fixed_math::kExp[0];
  float p = __fmaf_rn(kExp0, r, kExp1);
  p = __fmaf_rn(p, r, kExp2);
  p = __fmaf_rn(p, r, kExp3);
  p = __fmaf_rn(p, r, kExp4);
  p = __fmaf_rn(p, r, kExp5);
  return {__fmaf_rn(p, __fmul_rn(r, r), r), __float_as_uint(t)};
}
__device__ inline float power_of_two(std::uint32_t rounded) {
  return __uint_as_float((rounded - fixed_math::kRoundBits + 127U) << 23);
}

__device__ inline float exp_fixed(float x) {
  const Reduced r = reduce(x);
  const float y = __fmul_rn(__fadd_rn(r.q, 1.0F), power_of_two(r.rounded));
  if (x < fixed_math::kExpLowest) return 0.0F;
  if (x > fixed_math::kExpHighest) return __uint_as_float(0x7F800000U);
  return y;
}

__device__ inline float tanh_fixed(float x) {
  const float twice = __fmul_rn(2.0F, fabsf(x));
  const Reduced r = reduce(twice > fixed_math::kTanhSaturates ? fixed_math::kTanhSaturates : twice);
  const float s = power_of_two(r.rounded);
  const float e = __fmaf_rn(r.q, s, __fsub_rn(s, 1.0F));
  return copysignf(__fdiv_rn(e, __fadd_rn(e, 2.0F)), x);
}

__device__ inline float gelu_fixed(float z) {
  const float t = __fmaf_rn(__fmul_rn(z, z), fixed_math::kGeluCubic, 1.0F);
  const float u = __fmul_rn(__fmul_rn(z, fixed_math::kGeluOuter), t);
  return __fdiv_rn(z, __fadd_rn(1.0F, exp_fixed(u)));
}

// A NaN result is the NaN 0x7FC00000, as quant_dot.h promises.
__device__ inline float canonical_nan(float v) { return v != v ? __uint_as_float(0x7FC00000U) : v; }

__device__ inline float half_bits_to_float(std::uint16_t h) {
  return __half2float(__ushort_as_half(h));
}
__device__ inline std::uint16_t float_to_half_bits(float f) {
  return __half_as_ushort(__float2half_rn(f));
}

}  // namespace assay::device
