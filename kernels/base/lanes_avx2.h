// Sixteen float lanes as two AVX registers; see lanes_avx512.h.
#pragma once
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "kernels/base/fixed_math.h"

#define ASSAY_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define ASSAY_LANE ASSAY_TARGET_AVX2 inline __attribute__((always_inline))

namespace assay::lanes_avx2 {

struct F {
  __m256 a;  // lanes 0..7
  __m256 b;  // lanes 8..15
};
inline constexpr int kChains = 4;

ASSAY_LANE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
ASSAY_LANE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
ASSAY_LANE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
ASSAY_LANE F load(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
ASSAY_LANE void store(float* p, F v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
ASSAY_LANE void store(std::uint16_t* p, F v) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.a, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.b, kNearest));
}
ASSAY_LANE F load_n(const float* p, int n) {
  alignas(32) float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<std::size_t>(n) * sizeof(float));
  return load(lanes);
}
ASSAY_LANE void store_n(float* p, F v, int n) {
  alignas(32) float lanes[16];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<std::size_t>(n) * sizeof(float));
}
ASSAY_LANE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
ASSAY_LANE F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
ASSAY_LANE F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
ASSAY_LANE F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
ASSAY_LANE F fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
ASSAY_LANE F keep_max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
ASSAY_LANE F magnitude(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
ASSAY_LANE F with_sign(F x, F y) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, y.a)),
          _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, y.b))};
}
ASSAY_LANE F if_less(F x, float limit, F then, F otherwise) {
  const __m256 l = _mm256_set1_ps(limit);
  return {_mm256_blendv_ps(otherwise.a, then.a, _mm256_cmp_ps(x.a, l, _CMP_LT_OQ)),
          _mm256_blendv_ps(otherwise.b, then.b, _mm256_cmp_ps(x.b, l, _CMP_LT_OQ))};
}
ASSAY_LANE F if_greater(F x, float limit, F then, F otherwise) {
  const __m256 l = _mm256_set1_ps(limit);
  return {_mm256_blendv_ps(otherwise.a, then.a, _mm256_cmp_ps(x.a, l, _CMP_GT_OQ)),
          _mm256_blendv_ps(otherwise.b, then.b, _mm256_cmp_ps(x.b, l, _CMP_GT_OQ))};
}
ASSAY_LANE F keep_between(F x, int first, int last, float otherwise) {
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
  const __m256i from = _mm256_set1_epi32(first - 1);
  const __m256i to = _mm256_set1_epi32(last);
  const auto pick = [&](__m256 v, __m256i lane) ASSAY_TARGET_AVX2 {
    const __m256i in =
        _mm256_and_si256(_mm256_cmpgt_epi32(lane, from), _mm256_cmpgt_epi32(to, lane));
    return _mm256_blendv_ps(_mm256_set1_ps(otherwise), v, _mm256_castsi256_ps(in));
  };
  return {pick(x.a, low), pick(x.b, high)};
}
ASSAY_LANE F power_of_two(F rounded) {
  const __m256i bias = _mm256_set1_epi32(static_cast<int>(fixed_math::kRoundBits - 127U));
  return {_mm256_castsi256_ps(
              _mm256_slli_epi32(_mm256_sub_epi32(_mm256_castps_si256(rounded.a), bias), 23)),
          _mm256_castsi256_ps(
              _mm256_slli_epi32(_mm256_sub_epi32(_mm256_castps_si256(rounded.b), bias), 23))};
}

ASSAY_LANE F canonical(F x) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  return {_mm256_blendv_ps(x.a, nan, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
          _mm256_blendv_ps(x.b, nan, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
}

ASSAY_LANE float tree(F v) {
  const __m256 h8 = _mm256_add_ps(v.a, v.b);
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_movehdup_ps(h2)));
}

// Lane i of the result = the tree over the eight sums h8[i].
ASSAY_LANE __m256 trees8(const __m256* h8) {
  __m256 pair[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    pair[r] = _mm256_add_ps(_mm256_permute2f128_ps(h8[r], h8[4 + r], 0x20),
                            _mm256_permute2f128_ps(h8[r], h8[4 + r], 0x31));
  }
  const __m256 x = _mm256_add_ps(_mm256_shuffle_ps(pair[0], pair[1], _MM_SHUFFLE(1, 0, 1, 0)),
                                 _mm256_shuffle_ps(pair[0], pair[1], _MM_SHUFFLE(3, 2, 3, 2)));
  const __m256 y = _mm256_add_ps(_mm256_shuffle_ps(pair[2], pair[3], _MM_SHUFFLE(1, 0, 1, 0)),
                                 _mm256_shuffle_ps(pair[2], pair[3], _MM_SHUFFLE(3, 2, 3, 2)));
  return _mm256_add_ps(_mm256_shuffle_ps(x, y, _MM_SHUFFLE(2, 0, 2, 0)),
                       _mm256_shuffle_ps(x, y, _MM_SHUFFLE(3, 1, 3, 1)));
}

ASSAY_LANE F trees(const F* v) {
  __m256 h8[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) h8[i] = _mm256_add_ps(v[i].a, v[i].b);
  return {trees8(h8), trees8(h8 + 8)};
}

}  // namespace assay::lanes_avx2
#undef ASSAY_LANE
