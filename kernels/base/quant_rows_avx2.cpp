// y[t][r] = sum_c W[r][c] x[t][c] for 16 rows r and the tokens t (orders of quant_dot.h).
//
// A lane is a row, so a chain is a register (or 8 floats of the accumulator array) and nothing is summed across lanes:
// the order of the contract costs nothing. A group is read once for all tokens of a tile; per block and token the fast
// lane does 8 broadcasts of 4 activation codes, 8 multiply-adds and one fma. Bound by memory for one token, by the
// multiply-adds from a few tokens on.
#include "kernels/base/quant_rows_avx2.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <immintrin.h>

#include "kernels/base/fixed_math.h"

// The attribute goes on every function that holds intrinsics: no global flag, so that a host without AVX2 still runs
// the rest. Lambdas would not inherit it.
#define ASSAY_TARGET __attribute__((target("avx2,fma,f16c")))
#define ASSAY_INLINE inline __attribute__((always_inline, target("avx2,fma,f16c")))

namespace assay {
namespace {

struct V {
  using I = __m256i;
  using F = __m256;
  static constexpr int kRows = 8;
  ASSAY_INLINE static I load(const void* p) { return _mm256_loadu_si256(static_cast<const I*>(p)); }
  ASSAY_INLINE static I bytes(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
  ASSAY_INLINE static I words(int v) { return _mm256_set1_epi32(v); }
  ASSAY_INLINE static I both(I a, I b) { return _mm256_and_si256(a, b); }
  ASSAY_INLINE static I either(I a, I b) { return _mm256_or_si256(a, b); }
  template <int N>
  ASSAY_INLINE static I right(I a) {
    return _mm256_srli_epi32(a, N);
  }
  template <int N>
  ASSAY_INLINE static I left(I a) {
    return _mm256_slli_epi32(a, N);
  }
  ASSAY_INLINE static I right(I a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
  ASSAY_INLINE static I signed_byte(I a, int k) {
    return _mm256_srai_epi32(_mm256_sll_epi32(a, _mm_cvtsi32_si128(24 - 8 * k)), 24);
  }
  ASSAY_INLINE static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  ASSAY_INLINE static F add(F a, F b) { return _mm256_add_ps(a, b); }
  ASSAY_INLINE static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  ASSAY_INLINE static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  ASSAY_INLINE static F div(F a, F b) { return _mm256_div_ps(a, b); }
  ASSAY_INLINE static I bits(F a) { return _mm256_castps_si256(a); }
  ASSAY_INLINE static F floats(I a) { return _mm256_castsi256_ps(a); }
  // a < b ? yes : no; a NaN is not less.
  ASSAY_INLINE static F where_less(F a, F b, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  ASSAY_INLINE static F negative(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0F)); }
  ASSAY_INLINE static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  ASSAY_INLINE static F broadcast(float v) { return _mm256_set1_ps(v); }
  ASSAY_INLINE static F zero() { return _mm256_setzero_ps(); }
  ASSAY_INLINE static F load_floats(const float* p) { return _mm256_loadu_ps(p); }
  ASSAY_INLINE static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  ASSAY_INLINE static F halves(const std::uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  ASSAY_INLINE static F canonical(F v) {
    const F nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    return _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  }
  // Signed codes: |code| times the activation with the code's sign.
  static constexpr bool kSignedDot = true;
  template <class Format>
  ASSAY_INLINE static I dot(const I (&w)[8], const std::int8_t* codes, int first, int count) {
    const I ones = _mm256_set1_epi16(1);
    I sum = _mm256_setzero_si256();
    I pairs = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const int j = first + i;
      std::int32_t four = 0;
      std::memcpy(&four, codes + 4 * j, 4);
      const I q = _mm256_set1_epi32(four);
      const I product = Format::kSigned
                            ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(q, w[j]))
                            : _mm256_maddubs_epi16(w[j], q);
      // kDots sums of pairs fit an int16.
      pairs = i % Format::kDots == 0 ? product : _mm256_add_epi16(pairs, product);
      if (i % Format::kDots == Format::kDots - 1 || i == count - 1) {
        const I wide = _mm256_madd_epi16(pairs, ones);
        sum = i < Format::kDots ? wide : _mm256_add_epi32(sum, wide);
      }
    }
    return sum;
  }
};

constexpr int kTile = 8;

#include "kernels/base/quant_formats_simd.inc"

// Blocks whose values are expanded before the tokens walk over them: 4 KB of floats, and the chains are loaded and
// stored once a strip.
constexpr int kStrip = 4;

// values[e][row] of block s, by the operations of dequantize().
template <class Format>
ASSAY_INLINE void expand(const std::uint8_t* lines,
                         const std::uint8_t* halves,
                         int s,
                         float* values) {
  __m256i w[8];
  Format::codes(lines, s, w);
  const __m256 d = V::halves(halves);
  __m256 m = _mm256_setzero_ps();
  if constexpr (Format::kMinimum) m = V::halves(halves + 32);
  __m256 scale[2] = {d, d};
  if constexpr (Format::kMultipliers) {
    __m256i first;
    __m256i second;
    Format::multipliers(lines, s, &first, &second);
    scale[0] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(first));
    scale[1] = scale[0];
    if constexpr (Format::kSplit) scale[1] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(second));
    if constexpr (Format::kMinimum) m = _mm256_mul_ps(m, _mm256_cvtepi32_ps(second));
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      __m256i code;
      if constexpr (Format::kSigned) {
        code = _mm256_srai_epi32(_mm256_slli_epi32(w[j], 24 - 8 * k), 24);
      } else {
        code = _mm256_and_si256(_mm256_srli_epi32(w[j], 8 * k), _mm256_set1_epi32(255));
        if constexpr (Format::kOffset != 0)
          code = _mm256_sub_epi32(code, _mm256_set1_epi32(Format::kOffset));
      }
      __m256 v = _mm256_mul_ps(scale[j / 4], _mm256_cvtepi32_ps(code));
      if constexpr (Format::kMinimum)
        v = Format::kMultipliers ? _mm256_sub_ps(v, m) : _mm256_add_ps(v, m);
      _mm256_store_ps(values + 8 * (4 * j + k), v);
    }
  }
}

template <class Format>
ASSAY_INLINE void exact_tile_of(const std::byte* group,
                                int cols,
                                const float* const* x,
                                const std::int32_t* to,
                                int tokens,
                                float* y,
                                std::size_t stride) {
  const int blocks = cols / 32;
  const auto* lines = reinterpret_cast<const std::uint8_t*>(group);
  const std::uint8_t* halves =
      lines + static_cast<std::size_t>(blocks / Format::kSubs) * Format::kLines * 64;
  alignas(32) float values[kStrip][32][8];
  alignas(32) float chains[kTile][32][8];
  for (int part = 0; part < 2; ++part) {
    std::memset(chains, 0, sizeof(chains[0]) * static_cast<std::size_t>(tokens));
    for (int first = 0; first < blocks; first += kStrip) {
      const int strip = std::min(kStrip, blocks - first);
      for (int i = 0; i < strip; ++i) {
        const int b = first + i;
        const auto super = static_cast<std::size_t>(b / Format::kSubs);
        expand<Format>(lines + super * Format::kLines * 64 + 32 * part,
                       halves + super * Format::kHalves * 32 + 16 * part,
                       b % Format::kSubs,
                       &values[i][0][0]);
      }
      for (int t = 0; t < tokens; ++t) {
        const float* xt = x[t] + 32 * first;
        for (int e = 0; e < 32; e += 8) {
          __m256 c[8];
#pragma GCC unroll 8
          for (int j = 0; j < 8; ++j) c[j] = _mm256_load_ps(chains[t][e + j]);
          for (int i = 0; i < strip; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
              c[j] = _mm256_fmadd_ps(
                  _mm256_load_ps(values[i][e + j]), _mm256_set1_ps(xt[32 * i + e + j]), c[j]);
            }
          }
#pragma GCC unroll 8
          for (int j = 0; j < 8; ++j) _mm256_store_ps(chains[t][e + j], c[j]);
        }
      }
    }
    for (int t = 0; t < tokens; ++t) {
      for (int h = 16; h >= 1; h /= 2) {
        for (int j = 0; j < h; ++j) {
          _mm256_store_ps(
              chains[t][j],
              _mm256_add_ps(_mm256_load_ps(chains[t][j]), _mm256_load_ps(chains[t][j + h])));
        }
      }
      _mm256_storeu_ps(y + static_cast<std::size_t>(to[t]) * stride + 8 * part,
                       V::canonical(_mm256_load_ps(chains[t][0])));
    }
  }
}

template <class Format>
ASSAY_TARGET void exact_tile(const std::byte* group,
                             int cols,
                             const float* const* x,
                             const std::int32_t* to,
                             int tokens,
                             float* y,
                             std::size_t stride) {
  for (int from = 0; from < tokens; from += kTile) {
    exact_tile_of<Format>(
        group, cols, x + from, to + from, std::min(kTile, tokens - from), y, stride);
  }
}

// Weights without codes: a lane is a chain, 4 vectors hold the 32 chains of one row.
struct FloatF32 {
  static constexpr int kBytes = 4;
  ASSAY_INLINE static __m256 load(const std::byte* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static float one(const std::byte* p) {
    float v = 0.0F;
    std::memcpy(&v, p, 4);
    return v;
  }
};
struct FloatF16 {
  static constexpr int kBytes = 2;
  ASSAY_INLINE static __m256 load(const std::byte* p) {
    return V::halves(reinterpret_cast<const std::uint8_t*>(p));
  }
  static float one(const std::byte* p) {
    std::uint16_t v = 0;
    std::memcpy(&v, p, 2);
    return half_to_float(v);
  }
};
struct FloatBf16 {
  static constexpr int kBytes = 2;
  ASSAY_INLINE static __m256 load(const std::byte* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
  }
  static float one(const std::byte* p) {
    std::uint16_t v = 0;
    std::memcpy(&v, p, 2);
    return bf16_to_float(v);
  }
};

template <class Value>
ASSAY_TARGET void float_row(const std::byte* row,
                            int cols,
                            const float* const* x,
                            const std::int32_t* to,
                            int tokens,
                            float* y,
                            std::size_t stride) {
  for (int t = 0; t < tokens; ++t) {
    const float* xt = x[t];
    __m256 c[4] = {
        _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    int at = 0;
    for (; at + 32 <= cols; at += 32) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        c[i] =
            _mm256_fmadd_ps(Value::load(row + static_cast<std::size_t>(at + 8 * i) * Value::kBytes),
                            _mm256_loadu_ps(xt + at + 8 * i),
                            c[i]);
      }
    }
    if (at < cols) {
      alignas(32) float chain[32];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) _mm256_store_ps(chain + 8 * i, c[i]);
      for (int j = 0; at + j < cols; ++j) {
        chain[j] =
            __builtin_fmaf(Value::one(row + static_cast<std::size_t>(at + j) * Value::kBytes),
                           xt[at + j],
                           chain[j]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) c[i] = _mm256_load_ps(chain + 8 * i);
    }
    // The halving tree, h = 16, 8, 4, 2, 1.
    const __m256 h8 = _mm256_add_ps(_mm256_add_ps(c[0], c[2]), _mm256_add_ps(c[1], c[3]));
    const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
    const float sum = _mm_cvtss_f32(_mm_add_ss(h2, _mm_movehdup_ps(h2)));
    y[static_cast<std::size_t>(to[t]) * stride] =
        sum != sum ? std::bit_cast<float>(std::uint32_t{0x7FC00000}) : sum;
  }
}

ASSAY_TARGET void pack(BlockType type,
                       const std::int8_t* codes,
                       const std::uint16_t* scales,
                       std::size_t n,
                       Q8Record* out) {
  const int offset = type == BlockType::kQ4_0   ? FormatQ40::kOffset
                     : type == BlockType::kQ5_0 ? FormatQ50::kOffset
                                                : FormatQ80::kOffset;
  const bool split = type == BlockType::kQ6_K;
  const bool minimum =
      !split && type != BlockType::kQ4_0 && type != BlockType::kQ5_0 && type != BlockType::kQ8_0;
  for (std::size_t b = 0; b < n / kQ8Block; ++b) {
    const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + b * kQ8Block));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[b].codes), q);
    out[b].scale = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(scales[b])));
    const __m256i fours =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    __m256i sums = _mm256_hadd_epi32(fours, fours);
    sums = _mm256_hadd_epi32(sums, sums);  // lane 0: elements 0..15, lane 4: 16..31
    const int low = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
    const int high = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
    if (minimum) {
      out[b].correction = std::bit_cast<std::uint32_t>(static_cast<float>(low + high));
    } else if (split) {
      out[b].correction =
          (static_cast<std::uint32_t>(low) & 0xFFFFU) | static_cast<std::uint32_t>(high) << 16;
    } else {
      out[b].correction = static_cast<std::uint32_t>(-offset * (low + high));
    }
  }
}

RowKernels::ExactTile exact(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return exact_tile<FormatQ40>;
    case BlockType::kQ4_1:
      return exact_tile<FormatQ41>;
    case BlockType::kQ5_0:
      return exact_tile<FormatQ50>;
    case BlockType::kQ5_1:
      return exact_tile<FormatQ51>;
    case BlockType::kQ8_0:
      return exact_tile<FormatQ80>;
    case BlockType::kQ4_K:
      return exact_tile<FormatQ4K>;
    case BlockType::kQ5_K:
      return exact_tile<FormatQ5K>;
    case BlockType::kQ6_K:
      return exact_tile<FormatQ6K>;
    case BlockType::kF32:
      return float_row<FloatF32>;
    case BlockType::kF16:
      return float_row<FloatF16>;
    case BlockType::kBF16:
      return float_row<FloatBf16>;
  }
  return nullptr;
}

}  // namespace

const RowKernels kRowKernelsAvx2 = {.fast = fast,
                                    .fast_one = fast_one,
                                    .exact = exact,
                                    .pack = pack,
                                    .geglu = geglu,
                                    .combine = combine,
                                    .macs_worth_a_thread = 131072.0};

}  // namespace assay
