// Sixteen float lanes as an array, for a CPU without vector instructions; see lanes_avx512.h. Only what pointwise needs.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/base/blocks.h"
#include "kernels/base/fixed_math.h"

namespace assay::lanes_plain {

struct F {
  float lane[16];
};
// op(i) for every lane i
template <class Op>
inline F each_lane(Op op) {
  F r;
  for (int i = 0; i < 16; ++i) r.lane[i] = op(i);
  return r;
}

inline F set1(float x) {
  return each_lane([&](int) { return x; });
}
inline F zero() { return set1(0.0F); }
inline F load_n(const float* p, int n) {
  F r = zero();
  std::memcpy(r.lane, p, static_cast<std::size_t>(n) * sizeof(float));
  return r;
}
inline F load(const float* p) { return load_n(p, 16); }
inline void store_n(float* p, const F& v, int n) {
  std::memcpy(p, v.lane, static_cast<std::size_t>(n) * sizeof(float));
}
inline void store(float* p, const F& v) { store_n(p, v, 16); }
inline void store(std::uint16_t* p, const F& v) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_half(v.lane[i]);
}
inline F add(const F& a, const F& b) {
  return each_lane([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline F sub(const F& a, const F& b) {
  return each_lane([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline F mul(const F& a, const F& b) {
  return each_lane([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline F div(const F& a, const F& b) {
  return each_lane([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline F fma(const F& a, const F& b, const F& c) {
  return each_lane([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
inline F magnitude(const F& a) {
  return each_lane([&](int i) { return std::fabs(a.lane[i]); });
}
inline F with_sign(const F& a, const F& b) {
  return each_lane([&](int i) { return std::copysign(a.lane[i], b.lane[i]); });
}
inline F if_less(const F& a, float limit, const F& then, const F& otherwise) {
  return each_lane([&](int i) { return a.lane[i] < limit ? then.lane[i] : otherwise.lane[i]; });
}
inline F if_greater(const F& a, float limit, const F& then, const F& otherwise) {
  return each_lane([&](int i) { return a.lane[i] > limit ? then.lane[i] : otherwise.lane[i]; });
}
inline F power_of_two(const F& rounded) {
  return each_lane([&](int i) {
    return fixed_math::power_of_two(std::bit_cast<std::uint32_t>(rounded.lane[i]));
  });
}
inline float tree(F v) {
  for (int h = 8; h >= 1; h /= 2) {
    for (int c = 0; c < h; ++c) v.lane[c] += v.lane[c + h];
  }
  return v.lane[0];
}

#define ASSAY_LANES
#include "kernels/base/math_lanes.inc"
#undef ASSAY_LANES

}  // namespace assay::lanes_plain
