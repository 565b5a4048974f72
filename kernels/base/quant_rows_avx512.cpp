// y[t][r] = sum_c W[r][c] x[t][c] in the fast lane for 16 rows r and the tokens t (order of quant_dot.h).
//
// A lane is a row and a vector holds the whole group. Per block and token: 8 vpdpbusd, each with a broadcast of 4
// activation codes as its memory operand, then one fma into the block's chain. Codes stay unsigned; what the format's
// offset adds is taken away by the record's correction, exactly, in int32. Bound by memory for one token.
#include "kernels/base/quant_rows_avx512.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

// g++ 12 takes the deliberately undefined pass-through operand inside its AVX-512 header for a mistake (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/base/fixed_math.h"
#include "kernels/base/quant_rows_avx2.h"

#define ASSAY_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))
#define ASSAY_INLINE                   \
  inline __attribute__((always_inline, \
                        target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))

namespace assay {
namespace {

struct V {
  using I = __m512i;
  using F = __m512;
  static constexpr int kRows = 16;
  ASSAY_INLINE static I load(const void* p) { return _mm512_loadu_si512(p); }
  ASSAY_INLINE static I bytes(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
  ASSAY_INLINE static I words(int v) { return _mm512_set1_epi32(v); }
  ASSAY_INLINE static I both(I a, I b) { return _mm512_and_si512(a, b); }
  ASSAY_INLINE static I either(I a, I b) { return _mm512_or_si512(a, b); }
  template <int N>
  ASSAY_INLINE static I right(I a) {
    return _mm512_srli_epi32(a, N);
  }
  template <int N>
  ASSAY_INLINE static I left(I a) {
    return _mm512_slli_epi32(a, N);
  }
  ASSAY_INLINE static I right(I a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
  ASSAY_INLINE static I signed_byte(I a, int k) {
    return _mm512_srai_epi32(_mm512_sll_epi32(a, _mm_cvtsi32_si128(24 - 8 * k)), 24);
  }
  ASSAY_INLINE static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  ASSAY_INLINE static F add(F a, F b) { return _mm512_add_ps(a, b); }
  ASSAY_INLINE static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  ASSAY_INLINE static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  ASSAY_INLINE static F div(F a, F b) { return _mm512_div_ps(a, b); }
  ASSAY_INLINE static I bits(F a) { return _mm512_castps_si512(a); }
  ASSAY_INLINE static F floats(I a) { return _mm512_castsi512_ps(a); }
  // a < b ? yes : no; a NaN is not less.
  ASSAY_INLINE static F where_less(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  ASSAY_INLINE static F negative(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0F)); }
  ASSAY_INLINE static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  ASSAY_INLINE static F broadcast(float v) { return _mm512_set1_ps(v); }
  ASSAY_INLINE static F zero() { return _mm512_setzero_ps(); }
  ASSAY_INLINE static F load_floats(const float* p) { return _mm512_loadu_ps(p); }
  ASSAY_INLINE static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  ASSAY_INLINE static F halves(const std::uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  ASSAY_INLINE static F canonical(F v) {
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(_mm512_castps_si512(v), nan, _mm512_set1_epi32(0x7FC00000)));
  }
  // Signed codes become unsigned with an offset of 128, which the record's correction holds.
  static constexpr bool kSignedDot = false;
  template <class Format>
  ASSAY_INLINE static I dot(const I (&w)[8], const std::int8_t* codes, int first, int count) {
    // Two sums, so that no more than four instructions wait for one another.
    I sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const int j = first + i;
      std::int32_t four = 0;
      std::memcpy(&four, codes + 4 * j, 4);
      const I u = Format::kSigned
                      ? _mm512_xor_si512(w[j], _mm512_set1_epi8(static_cast<char>(0x80)))
                      : w[j];
      sum[i % 2] = _mm512_dpbusd_epi32(sum[i % 2], u, _mm512_set1_epi32(four));
    }
    return _mm512_add_epi32(sum[0], sum[1]);
  }
};

constexpr int kTile = 8;

#include "kernels/base/quant_formats_simd.inc"

RowKernels::ExactTile exact(BlockType type) { return kRowKernelsAvx2.exact(type); }
void pack(BlockType type,
          const std::int8_t* codes,
          const std::uint16_t* scales,
          std::size_t n,
          Q8Record* out) {
  kRowKernelsAvx2.pack(type, codes, scales, n, out);
}

}  // namespace

const RowKernels kRowKernelsAvx512Vnni = {.fast = fast,
                                          .fast_one = fast_one,
                                          .exact = exact,
                                          .pack = pack,
                                          .geglu = geglu,
                                          .combine = combine,
                                          .macs_worth_a_thread = 262144.0};

}  // namespace assay
