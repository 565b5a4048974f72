// Sixteen float lanes as one AVX-512 register: the vocabulary in which attend_lanes.inc and pointwise's rows.inc are
// written. lanes_avx2.h has the same names over two AVX registers; every function is a fixed operation on each lane, so
// both give the bits of the scalar contracts.
#pragma once
#include <cstdint>

// GCC 12 sees _mm512_undefined_ps() inside its own intrinsics as uninitialised (GCC bug 105593); the warnings belong to
// that header, so they are off for whoever includes this one.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/base/fixed_math.h"

#define ASSAY_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define ASSAY_LANE ASSAY_TARGET_AVX512 inline __attribute__((always_inline))

namespace assay::lanes_avx512 {

using F = __m512;
// Vectors of running sums that leave room in the registers for their operands.
inline constexpr int kChains = 16;

ASSAY_LANE F zero() { return _mm512_setzero_ps(); }
ASSAY_LANE F set1(float x) { return _mm512_set1_ps(x); }
ASSAY_LANE F load(const float* p) { return _mm512_loadu_ps(p); }
ASSAY_LANE F load(const std::uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ASSAY_LANE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
// Rounded to nearest even.
ASSAY_LANE void store(std::uint16_t* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// The first n lanes, 1..15; the others are 0 (load) or left alone (store).
ASSAY_LANE F load_n(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << n) - 1U), p);
}
ASSAY_LANE void store_n(float* p, F v, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << n) - 1U), v);
}
ASSAY_LANE F add(F a, F b) { return _mm512_add_ps(a, b); }
ASSAY_LANE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
ASSAY_LANE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
ASSAY_LANE F div(F a, F b) { return _mm512_div_ps(a, b); }
ASSAY_LANE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
// a > b ? a : b, so that a NaN in a never wins.
ASSAY_LANE F keep_max(F a, F b) { return _mm512_max_ps(a, b); }
ASSAY_LANE F magnitude(F a) { return _mm512_abs_ps(a); }
// The magnitude of a with the sign of b.
ASSAY_LANE F with_sign(F a, F b) {
  const __m512 sign = _mm512_set1_ps(-0.0F);
  return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b));
}
// a < limit ? then : otherwise; a > limit ? ..
ASSAY_LANE F if_less(F a, float limit, F then, F otherwise) {
  return _mm512_mask_blend_ps(
      _mm512_cmp_ps_mask(a, _mm512_set1_ps(limit), _CMP_LT_OQ), otherwise, then);
}
ASSAY_LANE F if_greater(F a, float limit, F then, F otherwise) {
  return _mm512_mask_blend_ps(
      _mm512_cmp_ps_mask(a, _mm512_set1_ps(limit), _CMP_GT_OQ), otherwise, then);
}
// Lanes [first, last) of a, elsewhere `otherwise`.
ASSAY_LANE F keep_between(F a, int first, int last, float otherwise) {
  const unsigned mask = ((1U << last) - 1U) & ~((1U << first) - 1U);
  return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), _mm512_set1_ps(otherwise), a);
}
// 2^n of fixed_math::reduce's rounded value kRoundBits + n.
ASSAY_LANE F power_of_two(F rounded) {
  const __m512i n =
      _mm512_sub_epi32(_mm512_castps_si512(rounded),
                       _mm512_set1_epi32(static_cast<int>(fixed_math::kRoundBits - 127U)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(n, 23));
}

// A NaN becomes 0x7FC00000.
ASSAY_LANE F canonical(F a) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q),
                              a,
                              _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
}

// The halving tree h = 8, 4, 2, 1.
ASSAY_LANE float tree(F v) {
  const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_movehdup_ps(h2)));
}

// Lane i = tree(v[i]): the sixteen trees are folded together, two vectors into one at each height.
ASSAY_LANE F trees(const F* v) {
  F quad[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    // Slots in this order bring key 4 b + r to block b, element r.
    const F a = _mm512_add_ps(_mm512_shuffle_f32x4(v[r], v[4 + r], _MM_SHUFFLE(1, 0, 1, 0)),
                              _mm512_shuffle_f32x4(v[r], v[4 + r], _MM_SHUFFLE(3, 2, 3, 2)));
    const F b = _mm512_add_ps(_mm512_shuffle_f32x4(v[8 + r], v[12 + r], _MM_SHUFFLE(1, 0, 1, 0)),
                              _mm512_shuffle_f32x4(v[8 + r], v[12 + r], _MM_SHUFFLE(3, 2, 3, 2)));
    quad[r] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(2, 0, 2, 0)),
                            _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
  }
  const F x = _mm512_add_ps(_mm512_shuffle_ps(quad[0], quad[1], _MM_SHUFFLE(1, 0, 1, 0)),
                            _mm512_shuffle_ps(quad[0], quad[1], _MM_SHUFFLE(3, 2, 3, 2)));
  const F y = _mm512_add_ps(_mm512_shuffle_ps(quad[2], quad[3], _MM_SHUFFLE(1, 0, 1, 0)),
                            _mm512_shuffle_ps(quad[2], quad[3], _MM_SHUFFLE(3, 2, 3, 2)));
  return _mm512_add_ps(_mm512_shuffle_ps(x, y, _MM_SHUFFLE(2, 0, 2, 0)),
                       _mm512_shuffle_ps(x, y, _MM_SHUFFLE(3, 1, 3, 1)));
}

}  // namespace assay::lanes_avx512
#undef ASSAY_LANE
