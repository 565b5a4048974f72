// IEEE half on the CPU, as far as Assay's kernels use it.
#pragma once
#include <cstdint>

#include "kernels/base/blocks.h"

struct __half {
  std::uint16_t bits;
  operator float() const { return assay::half_to_float(bits); }
};
struct alignas(4) __half2 {
  __half x, y;
};
inline float __half2float(__half h) { return assay::half_to_float(h.bits); }
inline __half __float2half_rn(float f) { return {assay::float_to_half(f)}; }
inline __half __ushort_as_half(std::uint16_t bits) { return {bits}; }
inline std::uint16_t __half_as_ushort(__half h) { return h.bits; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __floats2half2_rn(float a, float b) {
  return {__float2half_rn(a), __float2half_rn(b)};
}
inline float __low2float(__half2 h) { return __half2float(h.x); }
inline float __high2float(__half2 h) { return __half2float(h.y); }
