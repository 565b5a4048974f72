// y[t][r] = sum_c W[r][c] x[t][c] for 16 rows r and up to 16 tokens t (orders of quant_dot.h).
//
// A lane is a row, so a chain is a register (or 8 floats of the accumulator array) and nothing is summed across lanes:
// the order of the contract costs nothing. A group is read once for all tokens of a tile; per block and token the fast
// lane does 8 broadcasts of 4 activation codes, 8 multiply-adds and one fma. Bound by memory for one token, by the
// multiply-adds from a few tokens on.
#include "kernels/base/quant_rows_avx2.h"

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

#include "kernels/base/quant_formats_simd.h"

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
ASSAY_TARGET void exact_tile(
    const std::byte* group, int cols, const float* const* x, float* const* y, int tokens) {
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
      _mm256_storeu_ps(y[t] + 8 * part, V::canonical(_mm256_load_ps(chains[t][0])));
    }
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
ASSAY_TARGET void float_row(
    const std::byte* row, int cols, const float* const* x, float* const* y, int tokens) {
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
    alignas(32) float chain[32];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) _mm256_store_ps(chain + 8 * i, c[i]);
    for (int j = 0; at + j < cols; ++j) {
      chain[j] = __builtin_fmaf(
          Value::one(row + static_cast<std::size_t>(at + j) * Value::kBytes), xt[at + j], chain[j]);
    }
    for (int h = 16; h >= 1; h /= 2) {
      for (int j = 0; j < h; ++j) chain[j] += chain[j + h];
    }
    y[t][0] = chain[0] != chain[0] ? std::bit_cast<float>(std::uint32_t{0x7FC00000}) : chain[0];
  }
}

// gelu_fixed of fixed_math.h, operation by operation.
ASSAY_INLINE __m256 gelu8(__m256 z) {
  using namespace fixed_math;
  const __m256 one = _mm256_set1_ps(1.0F);
  const __m256 t = _mm256_fmadd_ps(_mm256_mul_ps(z, z), _mm256_set1_ps(kGeluCubic), one);
  const __m256 x = _mm256_mul_ps(_mm256_mul_ps(z, _mm256_set1_ps(kGeluOuter)), t);
  const __m256 magic = _mm256_set1_ps(kRound);
  const __m256 rounded = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), magic);
  const __m256 n = _mm256_sub_ps(rounded, magic);
  const __m256 r = _mm256_fmadd_ps(
      n, _mm256_set1_ps(-kLn2Low), _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x));
  __m256 p = _mm256_set1_ps(kExp[0]);
#pragma GCC unroll 5
  for (int i = 1; i < 6; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp[i]));
  const __m256 q = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
  const __m256i exponent =
      _mm256_add_epi32(_mm256_sub_epi32(_mm256_castps_si256(rounded),
                                        _mm256_set1_epi32(static_cast<int>(kRoundBits))),
                       _mm256_set1_epi32(127));
  __m256 e =
      _mm256_mul_ps(_mm256_add_ps(q, one), _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  e = _mm256_blendv_ps(
      e, _mm256_setzero_ps(), _mm256_cmp_ps(x, _mm256_set1_ps(kExpLowest), _CMP_LT_OQ));
  e = _mm256_blendv_ps(
      e, _mm256_set1_ps(INFINITY), _mm256_cmp_ps(x, _mm256_set1_ps(kExpHighest), _CMP_GT_OQ));
  return _mm256_div_ps(z, _mm256_add_ps(one, e));
}

ASSAY_TARGET void geglu(const float* gate, const float* up, std::size_t n, float* u) {
  for (std::size_t i = 0; i < n; i += 8) {
    _mm256_storeu_ps(u + i,
                     _mm256_mul_ps(gelu8(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
  }
}

ASSAY_TARGET void combine(const std::int32_t* ids,
                          const float* weights,
                          int top_k,
                          const float* y,
                          std::size_t stride,
                          std::size_t n,
                          float* out) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 sum = _mm256_setzero_ps();
    for (int k = 0; k < top_k; ++k) {
      if (ids[k] < 0) continue;
      sum = _mm256_fmadd_ps(_mm256_set1_ps(weights[k]),
                            _mm256_loadu_ps(y + static_cast<std::size_t>(k) * stride + i),
                            sum);
    }
    _mm256_storeu_ps(out + i, V::canonical(sum));
  }
  for (; i < n; ++i) {
    float sum = 0.0F;
    for (int k = 0; k < top_k; ++k) {
      if (ids[k] >= 0)
        sum = __builtin_fmaf(weights[k], y[static_cast<std::size_t>(k) * stride + i], sum);
    }
    out[i] = sum != sum ? std::bit_cast<float>(std::uint32_t{0x7FC00000}) : sum;
  }
}

RowKernels::ExactTile exact(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return exact_tile<FormatQ4_0>;
    case BlockType::kQ4_1:
      return exact_tile<FormatQ4_1>;
    case BlockType::kQ5_0:
      return exact_tile<FormatQ5_0>;
    case BlockType::kQ5_1:
      return exact_tile<FormatQ5_1>;
    case BlockType::kQ8_0:
      return exact_tile<FormatQ8_0>;
    case BlockType::kQ4_K:
      return exact_tile<FormatQ4_K>;
    case BlockType::kQ5_K:
      return exact_tile<FormatQ5_K>;
    case BlockType::kQ6_K:
      return exact_tile<FormatQ6_K>;
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
                                    .tile_tokens = kTile,
                                    .geglu = geglu,
                                    .combine = combine,
                                    .macs_worth_a_thread = 65536.0};

}  // namespace assay
