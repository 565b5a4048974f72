// y[t][r] = sum_c W[r][c] x[t][c] in the fast lane for 16 rows r and up to 16 tokens t (order of quant_dot.h).
//
// A lane is a row and a vector holds the whole group. Per block and token: 8 vpdpbusd, each with a broadcast of 4
// activation codes as its memory operand, then one fma into the block's chain. Codes stay unsigned; what the format's
// offset adds is taken away by the record's correction, exactly, in int32. Bound by memory for one token.
#include "kernels/base/quant_rows_avx512.h"

#include <bit>
#include <cstring>

// g++ 12 takes the deliberately undefined pass-through operand inside its AVX-512 header for a mistake (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

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
};

#include "kernels/base/quant_formats_simd.h"

constexpr int kTile = 8;

ASSAY_INLINE __m512 halves16(const std::uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ASSAY_INLINE __m512i broadcast4(const std::int8_t* codes) {
  std::int32_t four = 0;
  std::memcpy(&four, codes, 4);
  return _mm512_set1_epi32(four);
}
// Units first .. first + 3.
ASSAY_INLINE __m512i dot_half(__m512i sum,
                              const __m512i (&w)[8],
                              const std::int8_t* codes,
                              int first) {
#pragma GCC unroll 4
  for (int j = first; j < first + 4; ++j)
    sum = _mm512_dpbusd_epi32(sum, w[j], broadcast4(codes + 4 * j));
  return sum;
}

constexpr std::size_t kPrefetchBytes = 8192;
ASSAY_INLINE void prefetch(const std::uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

template <class Format>
ASSAY_TARGET void fast_tile(
    const std::byte* group, int cols, const Q8Record* const* x, float* const* y, int tokens) {
  const int supers = cols / (32 * Format::kSubs);
  const auto* lines = reinterpret_cast<const std::uint8_t*>(group);
  const std::uint8_t* halves = lines + static_cast<std::size_t>(supers) * Format::kLines * 64;
  constexpr int kBlockBytes = 64 * Format::kLines + 32 * Format::kHalves;
  const std::uint8_t* ahead = lines + kPrefetchBytes;
  alignas(64) float chains[kTile][8][kGroupRows];
  std::memset(chains, 0, sizeof(chains[0]) * static_cast<std::size_t>(tokens));
  for (int super = 0; super < supers;
       ++super, lines += 64 * Format::kLines, halves += 32 * Format::kHalves) {
    // A fixed distance ahead in the order of memory: past the end of a group lies the next one.
    for (int at = 0; at < kBlockBytes; at += 64) prefetch(ahead + at);
    ahead += kBlockBytes;
    for (int s = 0; s < Format::kSubs; ++s) {
      const int b = super * Format::kSubs + s;
      __m512i w[8];
      Format::codes(lines, s, w);
      if constexpr (Format::kSigned) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j)
          w[j] = _mm512_xor_si512(w[j], _mm512_set1_epi8(static_cast<char>(0x80)));
      }
      const __m512 d = halves16(halves);
      __m512 m = _mm512_setzero_ps();
      if constexpr (Format::kMinimum) m = halves16(halves + 32);
      __m512 multiplier[2] = {};
      if constexpr (Format::kMultipliers) {
        __m512i first;
        __m512i second;
        Format::multipliers(lines, s, &first, &second);
        multiplier[0] = _mm512_cvtepi32_ps(first);
        multiplier[1] = _mm512_cvtepi32_ps(second);
        if constexpr (Format::kMinimum) m = _mm512_xor_ps(m, _mm512_set1_ps(-0.0F));
      }
      for (int t = 0; t < tokens; ++t) {
        const Q8Record& q = x[t][b];
        const __m512 dx = _mm512_set1_ps(q.scale);
        float* chain = chains[t][b % 8];
        __m512 sum = _mm512_load_ps(chain);
        __m512 product;
        if constexpr (Format::kSplit) {
          const auto low = static_cast<std::int16_t>(q.correction & 0xFFFFU);
          const auto high = static_cast<std::int16_t>(q.correction >> 16);
          const __m512i i0 = dot_half(_mm512_set1_epi32(-Format::kOffset * low), w, q.codes, 0);
          const __m512i i1 = dot_half(_mm512_set1_epi32(-Format::kOffset * high), w, q.codes, 4);
          product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(i1),
                                    multiplier[1],
                                    _mm512_mul_ps(_mm512_cvtepi32_ps(i0), multiplier[0]));
        } else {
          // Two sums, so that no more than four instructions wait for one another.
          __m512i start = _mm512_setzero_si512();
          if constexpr (!Format::kMinimum)
            start = _mm512_set1_epi32(static_cast<int>(q.correction));
          const __m512i i = _mm512_add_epi32(dot_half(start, w, q.codes, 0),
                                             dot_half(_mm512_setzero_si512(), w, q.codes, 4));
          product = _mm512_cvtepi32_ps(i);
          if constexpr (Format::kMultipliers) product = _mm512_mul_ps(product, multiplier[0]);
        }
        sum = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), product, sum);
        if constexpr (Format::kMinimum) {
          __m512 total = _mm512_set1_ps(std::bit_cast<float>(q.correction));
          if constexpr (Format::kMultipliers) total = _mm512_mul_ps(total, multiplier[1]);
          sum = _mm512_fmadd_ps(_mm512_mul_ps(m, dx), total, sum);
        }
        _mm512_store_ps(chain, sum);
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    __m512 c[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) c[i] = _mm512_load_ps(chains[t][i]);
    const __m512 low = _mm512_add_ps(_mm512_add_ps(c[0], c[1]), _mm512_add_ps(c[2], c[3]));
    const __m512 high = _mm512_add_ps(_mm512_add_ps(c[4], c[5]), _mm512_add_ps(c[6], c[7]));
    const __m512 v = _mm512_add_ps(low, high);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    _mm512_storeu_ps(y[t],
                     _mm512_castsi512_ps(_mm512_mask_mov_epi32(
                         _mm512_castps_si512(v), nan, _mm512_set1_epi32(0x7FC00000))));
  }
}

RowKernels::FastTile fast(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return fast_tile<FormatQ4_0>;
    case BlockType::kQ4_1:
      return fast_tile<FormatQ4_1>;
    case BlockType::kQ5_0:
      return fast_tile<FormatQ5_0>;
    case BlockType::kQ5_1:
      return fast_tile<FormatQ5_1>;
    case BlockType::kQ8_0:
      return fast_tile<FormatQ8_0>;
    case BlockType::kQ4_K:
      return fast_tile<FormatQ4_K>;
    case BlockType::kQ5_K:
      return fast_tile<FormatQ5_K>;
    case BlockType::kQ6_K:
      return fast_tile<FormatQ6_K>;
    case BlockType::kF32:
    case BlockType::kF16:
    case BlockType::kBF16:
      break;
  }
  return nullptr;
}

RowKernels::ExactTile exact(BlockType type) { return kRowKernelsAvx2.exact(type); }
void geglu(const float* gate, const float* up, std::size_t n, float* u) {
  kRowKernelsAvx2.geglu(gate, up, n, u);
}
void combine(const std::int32_t* ids,
             const float* weights,
             int top_k,
             const float* y,
             std::size_t stride,
             std::size_t n,
             float* out) {
  kRowKernelsAvx2.combine(ids, weights, top_k, y, stride, n, out);
}

}  // namespace

const RowKernels kRowKernelsAvx512Vnni = {.fast = fast,
                                          .exact = exact,
                                          .tile_tokens = kTile,
                                          .geglu = geglu,
                                          .combine = combine,
                                          .macs_worth_a_thread = 65536.0};

}  // namespace assay
