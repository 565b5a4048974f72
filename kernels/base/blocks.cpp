#include "kernels/base/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <immintrin.h>

#include "kernels/base/device_info.h"

namespace assay {
namespace {

struct TypeFacts {
  BlockType type;
  const char* name;
  std::size_t elements;
  std::size_t bytes;
};
constexpr TypeFacts kFacts[] = {
    {BlockType::kF32, "f32", 1, 4},
    {BlockType::kF16, "f16", 1, 2},
    {BlockType::kBF16, "bf16", 1, 2},
    {BlockType::kQ4_0, "q4_0", 32, 18},
    {BlockType::kQ4_1, "q4_1", 32, 20},
    {BlockType::kQ5_0, "q5_0", 32, 22},
    {BlockType::kQ5_1, "q5_1", 32, 24},
    {BlockType::kQ8_0, "q8_0", 32, 34},
    {BlockType::kQ4_K, "q4_k", 256, 144},
    {BlockType::kQ5_K, "q5_k", 256, 176},
    {BlockType::kQ6_K, "q6_k", 256, 210},
};
const TypeFacts& facts(BlockType type) {
  for (const auto& f : kFacts) {
    if (f.type == type) return f;
  }
  return kFacts[0];
}

std::uint8_t u8(const std::byte* p) { return static_cast<std::uint8_t>(*p); }
std::uint16_t load16(const std::byte* p) {
  std::uint16_t v = 0;
  std::memcpy(&v, p, 2);
  return v;
}
std::uint32_t load32(const std::byte* p) {
  std::uint32_t v = 0;
  std::memcpy(&v, p, 4);
  return v;
}
void store16(std::byte* p, std::uint16_t v) { std::memcpy(p, &v, 2); }
void store32(std::byte* p, std::uint32_t v) { std::memcpy(p, &v, 4); }

// 6-bit scale and minimum of sub-block s in the 12 bytes of Q4_K and Q5_K.
void k_scale_min(const std::byte* packed, int s, int* scale, int* minimum) {
  if (s < 4) {
    *scale = u8(packed + s) & 63;
    *minimum = u8(packed + s + 4) & 63;
  } else {
    *scale = (u8(packed + s + 4) & 15) | ((u8(packed + s - 4) >> 6) << 4);
    *minimum = (u8(packed + s + 4) >> 4) | ((u8(packed + s) >> 6) << 4);
  }
}
void set_k_scale_min(std::byte* packed, int s, int scale, int minimum) {
  const auto put = [&](int at, int value, int mask) {
    packed[at] = static_cast<std::byte>((u8(packed + at) & ~mask) | (value & mask));
  };
  if (s < 4) {
    put(s, scale, 63);
    put(s + 4, minimum, 63);
  } else {
    packed[s + 4] = static_cast<std::byte>((scale & 15) | ((minimum & 15) << 4));
    put(s - 4, (scale >> 4) << 6, 0xC0);
    put(s, (minimum >> 4) << 6, 0xC0);
  }
}

// Byte j of a 32-element block holds elements j (low nibble) and j + 16 (high), not 2j and 2j + 1.
int nibble32(const std::byte* qs, int j) { return j < 16 ? u8(qs + j) & 15 : u8(qs + j - 16) >> 4; }

void dequantize_block(BlockType type, const std::byte* b, float* out) {
  switch (type) {
    case BlockType::kF32:
      std::memcpy(out, b, 4);
      return;
    case BlockType::kF16:
      out[0] = half_to_float(load16(b));
      return;
    case BlockType::kBF16:
      out[0] = bf16_to_float(load16(b));
      return;
    case BlockType::kQ4_0: {
      const float d = half_to_float(load16(b));
      for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(nibble32(b + 2, j) - 8);
      return;
    }
    case BlockType::kQ4_1: {
      const float d = half_to_float(load16(b));
      const float m = half_to_float(load16(b + 2));
      for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(nibble32(b + 4, j)) + m;
      return;
    }
    case BlockType::kQ5_0: {
      const float d = half_to_float(load16(b));
      const std::uint32_t qh = load32(b + 2);
      for (int j = 0; j < 32; ++j) {
        const int q = nibble32(b + 6, j) | static_cast<int>(((qh >> j) & 1U) << 4);
        out[j] = d * static_cast<float>(q - 16);
      }
      return;
    }
    case BlockType::kQ5_1: {
      const float d = half_to_float(load16(b));
      const float m = half_to_float(load16(b + 2));
      const std::uint32_t qh = load32(b + 4);
      for (int j = 0; j < 32; ++j) {
        const int q = nibble32(b + 8, j) | static_cast<int>(((qh >> j) & 1U) << 4);
        out[j] = d * static_cast<float>(q) + m;
      }
      return;
    }
    case BlockType::kQ8_0: {
      const float d = half_to_float(load16(b));
      for (int j = 0; j < 32; ++j) {
        out[j] = d * static_cast<float>(static_cast<std::int8_t>(u8(b + 2 + j)));
      }
      return;
    }
    case BlockType::kQ4_K:
    case BlockType::kQ5_K: {
      const bool five = type == BlockType::kQ5_K;
      const float d = half_to_float(load16(b));
      const float dmin = half_to_float(load16(b + 2));
      const std::byte* qs = b + (five ? 48 : 16);
      for (int s = 0; s < 8; ++s) {
        int sc = 0;
        int m = 0;
        k_scale_min(b + 4, s, &sc, &m);
        const float ds = d * static_cast<float>(sc);
        const float dm = dmin * static_cast<float>(m);
        for (int l = 0; l < 32; ++l) {
          const int byte = u8(qs + 32 * (s / 2) + l);
          int q = s % 2 == 0 ? byte & 15 : byte >> 4;
          if (five) q += ((u8(b + 16 + l) >> s) & 1) << 4;
          out[32 * s + l] = ds * static_cast<float>(q) - dm;
        }
      }
      return;
    }
    case BlockType::kQ6_K: {
      const float d = half_to_float(load16(b + 208));
      for (int e = 0; e < 256; ++e) {
        const int n = e / 128;
        const int g = e % 128 / 32;
        const int l = e % 32;
        const int lo_byte = u8(b + 64 * n + 32 * (g & 1) + l);
        const int lo = g < 2 ? lo_byte & 15 : lo_byte >> 4;
        const int hi = (u8(b + 128 + 32 * n + l) >> (2 * g)) & 3;
        const int sc = static_cast<std::int8_t>(u8(b + 192 + 8 * n + 2 * g + l / 16));
        const float ds = d * static_cast<float>(sc);
        out[e] = ds * static_cast<float>((lo | (hi << 4)) - 32);
      }
      return;
    }
  }
}

// Largest magnitude with its sign: Q4_0 and Q5_0 put it on the most negative code.
float signed_max(const float* x, int n) {
  float best = 0.0F;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  }
  return best;
}
int clamp_round(float v, int lo, int hi) {
  return std::clamp(static_cast<int>(std::lround(v)), lo, hi);
}

void put_nibbles(std::byte* qs, const int* q) {
  for (int j = 0; j < 16; ++j)
    qs[j] = static_cast<std::byte>((q[j] & 15) | ((q[j + 16] & 15) << 4));
}
std::uint32_t fifth_bits(const int* q) {
  std::uint32_t bits = 0;
  for (int j = 0; j < 32; ++j) bits |= static_cast<std::uint32_t>((q[j] >> 4) & 1) << j;
  return bits;
}

void quantize_block(BlockType type, const float* x, std::byte* b) {
  int q[32];
  const auto symmetric = [&](int half_range) {
    const float d = signed_max(x, 32) / static_cast<float>(-half_range);
    store16(b, float_to_half(d));
    const float inverse = d != 0.0F ? 1.0F / d : 0.0F;
    for (int j = 0; j < 32; ++j)
      q[j] = clamp_round(x[j] * inverse + static_cast<float>(half_range), 0, 2 * half_range - 1);
  };
  const auto affine = [&](int levels) {
    const auto [lo, hi] = std::minmax_element(x, x + 32);
    const float d = (*hi - *lo) / static_cast<float>(levels);
    store16(b, float_to_half(d));
    store16(b + 2, float_to_half(*lo));
    const float inverse = d != 0.0F ? 1.0F / d : 0.0F;
    for (int j = 0; j < 32; ++j) q[j] = clamp_round((x[j] - *lo) * inverse, 0, levels);
  };
  switch (type) {
    case BlockType::kF32:
      std::memcpy(b, x, 4);
      return;
    case BlockType::kF16:
      store16(b, float_to_half(x[0]));
      return;
    case BlockType::kBF16:
      store16(b, float_to_bf16(x[0]));
      return;
    case BlockType::kQ4_0:
      symmetric(8);
      put_nibbles(b + 2, q);
      return;
    case BlockType::kQ4_1:
      affine(15);
      put_nibbles(b + 4, q);
      return;
    case BlockType::kQ5_0:
      symmetric(16);
      store32(b + 2, fifth_bits(q));
      put_nibbles(b + 6, q);
      return;
    case BlockType::kQ5_1:
      affine(31);
      store32(b + 4, fifth_bits(q));
      put_nibbles(b + 8, q);
      return;
    case BlockType::kQ8_0: {
      const float d = std::fabs(signed_max(x, 32)) / 127.0F;
      store16(b, float_to_half(d));
      const float inverse = d != 0.0F ? 1.0F / d : 0.0F;
      for (int j = 0; j < 32; ++j)
        b[2 + j] = static_cast<std::byte>(clamp_round(x[j] * inverse, -127, 127));
      return;
    }
    case BlockType::kQ4_K:
    case BlockType::kQ5_K: {
      const bool five = type == BlockType::kQ5_K;
      const int levels = five ? 31 : 15;
      float scale[8];
      float minimum[8];
      for (int s = 0; s < 8; ++s) {
        const auto [lo, hi] = std::minmax_element(x + 32 * s, x + 32 * s + 32);
        minimum[s] = std::max(0.0F, -*lo);  // the format subtracts a non-negative minimum
        scale[s] = std::max(0.0F, *hi + minimum[s]) / static_cast<float>(levels);
      }
      const float d = *std::max_element(scale, scale + 8) / 63.0F;
      const float dmin = *std::max_element(minimum, minimum + 8) / 63.0F;
      std::memset(b, 0, block_bytes(type));
      store16(b, float_to_half(d));
      store16(b + 2, float_to_half(dmin));
      std::byte* qs = b + (five ? 48 : 16);
      for (int s = 0; s < 8; ++s) {
        const int sc = d > 0.0F ? clamp_round(scale[s] / d, 0, 63) : 0;
        const int m = dmin > 0.0F ? clamp_round(minimum[s] / dmin, 0, 63) : 0;
        set_k_scale_min(b + 4, s, sc, m);
        const float ds = d * static_cast<float>(sc);
        const float dm = dmin * static_cast<float>(m);
        for (int l = 0; l < 32; ++l) {
          const int code = ds > 0.0F ? clamp_round((x[32 * s + l] + dm) / ds, 0, levels) : 0;
          std::byte& byte = qs[32 * (s / 2) + l];
          byte |= static_cast<std::byte>(s % 2 == 0 ? code & 15 : (code & 15) << 4);
          if (five) b[16 + l] |= static_cast<std::byte>((code >> 4) << s);
        }
      }
      return;
    }
    case BlockType::kQ6_K: {
      float scale[16];
      float largest = 0.0F;
      for (int s = 0; s < 16; ++s) {
        scale[s] = std::fabs(signed_max(x + 16 * s, 16)) / 31.0F;
        largest = std::max(largest, scale[s]);
      }
      const float d = largest / 127.0F;
      std::memset(b, 0, 210);
      store16(b + 208, float_to_half(d));
      for (int e = 0; e < 256; ++e) {
        const int n = e / 128;
        const int g = e % 128 / 32;
        const int l = e % 32;
        const int at = 8 * n + 2 * g + l / 16;
        const int sc = d > 0.0F ? clamp_round(scale[e / 16] / d, 0, 127) : 0;
        b[192 + at] = static_cast<std::byte>(sc);
        const float ds = d * static_cast<float>(sc);
        const int code = (ds > 0.0F ? clamp_round(x[e] / ds, -32, 31) : 0) + 32;
        b[64 * n + 32 * (g & 1) + l] |=
            static_cast<std::byte>(g < 2 ? code & 15 : (code & 15) << 4);
        b[128 + 32 * n + l] |= static_cast<std::byte>((code >> 4) << (2 * g));
      }
      return;
    }
  }
}

}  // namespace

std::size_t block_elements(BlockType type) { return facts(type).elements; }
std::size_t block_bytes(BlockType type) { return facts(type).bytes; }
const char* to_string(BlockType type) { return facts(type).name; }

std::optional<BlockType> parse_block_type(std::string_view name) {
  for (const auto& f : kFacts) {
    if (name == f.name) return f.type;
  }
  return std::nullopt;
}

std::optional<BlockType> block_type_from_id(std::uint32_t id) {
  for (const auto& f : kFacts) {
    if (id == static_cast<std::uint32_t>(f.type)) return f.type;
  }
  return std::nullopt;
}

std::size_t row_bytes(BlockType type, int cols) {
  return static_cast<std::size_t>(cols) / block_elements(type) * block_bytes(type);
}

QuantView make_quant_view(const std::byte* data, BlockType type, int rows, int cols) {
  return QuantView{
      .data = data, .type = type, .rows = rows, .cols = cols, .row_bytes = row_bytes(type, cols)};
}

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t exponent = (h >> 10) & 31U;
  const std::uint32_t mantissa = h & 0x3FFU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

std::uint16_t float_to_half(float f) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(f);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x1FFU));
  }
  if (magnitude >= 0x477FF000U)
    return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to 65536 or is inf
  if (magnitude < 0x38800000U) {
    // Below the smallest normal half: adding 0.5 leaves the code in the low bits, rounded to nearest even by the FPU.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13));
}

std::uint16_t float_to_bf16(float f) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(f);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

void dequantize(BlockType type, const std::byte* blocks, std::size_t n, float* out) {
  const std::size_t elements = block_elements(type);
  const std::size_t bytes = block_bytes(type);
  for (std::size_t i = 0; i < n; i += elements, blocks += bytes)
    dequantize_block(type, blocks, out + i);
}

void unpack_codes(BlockType type, const std::byte* row, std::size_t b, BlockCodes& out) {
  const std::size_t per_block = block_elements(type) / 32;
  const std::byte* p = row + b / std::max<std::size_t>(per_block, 1) * block_bytes(type);
  out.multiplier[0] = out.multiplier[1] = 1;
  out.minimum_multiplier = 0;
  out.d = load16(p);
  out.m = 0;
  const auto nibbles = [&](const std::byte* qs, int offset) {
    for (int j = 0; j < 16; ++j) {
      out.code[j] = static_cast<std::int8_t>((u8(qs + j) & 15) - offset);
      out.code[j + 16] = static_cast<std::int8_t>((u8(qs + j) >> 4) - offset);
    }
  };
  const auto fives = [&](const std::byte* high, const std::byte* qs, int offset) {
    const std::uint32_t bits = load32(high);
    nibbles(qs, offset);
    for (int j = 0; j < 32; ++j) {
      out.code[j] = static_cast<std::int8_t>(out.code[j] + static_cast<int>((bits >> j & 1U) << 4));
    }
  };
  switch (type) {
    case BlockType::kQ4_0:
      return nibbles(p + 2, 8);
    case BlockType::kQ4_1:
      out.m = load16(p + 2);
      out.minimum_multiplier = 1;
      return nibbles(p + 4, 0);
    case BlockType::kQ5_0:
      return fives(p + 2, p + 6, 16);
    case BlockType::kQ5_1:
      out.m = load16(p + 2);
      out.minimum_multiplier = 1;
      return fives(p + 4, p + 8, 0);
    case BlockType::kQ8_0:
      std::memcpy(out.code, p + 2, 32);
      return;
    case BlockType::kQ4_K:
    case BlockType::kQ5_K: {
      const int s = static_cast<int>(b % 8);
      const bool five = type == BlockType::kQ5_K;
      const std::byte* qs = p + (five ? 48 : 16) + 32 * (s / 2);
      out.m = static_cast<std::uint16_t>(load16(p + 2) ^ 0x8000U);
      k_scale_min(p + 4, s, &out.multiplier[0], &out.minimum_multiplier);
      out.multiplier[1] = out.multiplier[0];
      for (int l = 0; l < 32; ++l) {
        const int nibble = s % 2 == 0 ? u8(qs + l) & 15 : u8(qs + l) >> 4;
        const int high = five ? (u8(p + 16 + l) >> s & 1) << 4 : 0;
        out.code[l] = static_cast<std::int8_t>(nibble + high);
      }
      return;
    }
    case BlockType::kQ6_K: {
      const auto n = static_cast<int>(b % 8 / 4);
      const auto g = static_cast<int>(b % 4);
      out.d = load16(p + 208);
      for (int half = 0; half < 2; ++half) {
        out.multiplier[half] = static_cast<std::int8_t>(u8(p + 192 + 8 * n + 2 * g + half));
      }
      for (int l = 0; l < 32; ++l) {
        const int byte = u8(p + 64 * n + 32 * (g & 1) + l);
        const int low = g < 2 ? byte & 15 : byte >> 4;
        const int high = u8(p + 128 + 32 * n + l) >> (2 * g) & 3;
        out.code[l] = static_cast<std::int8_t>((low | high << 4) - 32);
      }
      return;
    }
    case BlockType::kF32:
    case BlockType::kF16:
    case BlockType::kBF16:
      return;  // no codes
  }
}

void quantize(BlockType type, const float* in, std::size_t n, std::byte* blocks) {
  const std::size_t elements = block_elements(type);
  const std::size_t bytes = block_bytes(type);
  for (std::size_t i = 0; i < n; i += elements, blocks += bytes)
    quantize_block(type, in + i, blocks);
}

namespace {

void quantize_q8_scalar(const float* x,
                        std::size_t blocks,
                        std::int8_t* codes,
                        std::uint16_t* scales) {
  for (std::size_t b = 0; b < blocks; ++b) {
    const float* xb = x + b * kQ8Block;
    float amax = 0.0F;
    bool finite = true;
    for (int j = 0; j < kQ8Block; ++j) {
      const float magnitude = std::fabs(xb[j]);
      finite = finite && magnitude < INFINITY;
      amax = std::max(amax, magnitude);
    }
    const float d = amax / 127.0F;
    const bool coded = finite && d > 0.0F;
    scales[b] = finite ? float_to_half(d) : std::uint16_t{0x7E00};
    for (int j = 0; j < kQ8Block; ++j) {
      // |x / d| exceeds 127 by a rounding, or by much more when d is subnormal and so has few bits.
      const float q = coded ? std::clamp(std::round(xb[j] / d), -127.0F, 127.0F) : 0.0F;
      codes[b * kQ8Block + static_cast<std::size_t>(j)] = static_cast<std::int8_t>(q);
    }
  }
}

// The same, eight values at a time. Half away from zero: adding the largest float below 0.5 with the value's sign and
// cutting off does it for every |v| < 2^23 (0.5 itself would send 0.49999997 to 1).
__attribute__((target("avx2,fma,f16c"))) void quantize_q8_avx2(const float* x,
                                                               std::size_t blocks,
                                                               std::int8_t* codes,
                                                               std::uint16_t* scales) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  const __m256 below_half = _mm256_set1_ps(0x1.fffffep-2F);
  const __m256 largest = _mm256_set1_ps(127.0F);
  for (std::size_t b = 0; b < blocks; ++b) {
    __m256 v[4];
    __m256 top = _mm256_setzero_ps();
    __m256 finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + b * kQ8Block + 8 * i);
      const __m256 magnitude = _mm256_andnot_ps(sign, v[i]);
      finite =
          _mm256_and_ps(finite, _mm256_cmp_ps(magnitude, _mm256_set1_ps(INFINITY), _CMP_LT_OQ));
      top = _mm256_max_ps(top, magnitude);
    }
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    const float amax = _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
    const float d = amax / 127.0F;
    const bool all_finite = _mm256_movemask_ps(finite) == 255;
    scales[b] = all_finite ? float_to_half(d) : std::uint16_t{0x7E00};
    __m256i q[4] = {};
    if (all_finite && d > 0.0F) {
      const __m256 divisor = _mm256_set1_ps(d);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        const __m256 r = _mm256_div_ps(v[i], divisor);
        const __m256 bound = _mm256_min_ps(_mm256_andnot_ps(sign, r), largest);
        const __m256i up = _mm256_cvttps_epi32(_mm256_add_ps(bound, below_half));
        q[i] = _mm256_sign_epi32(up, _mm256_or_si256(_mm256_castps_si256(r), _mm256_set1_epi32(1)));
      }
    }
    // The packs interleave the halves of their operands; the permutation puts them in order.
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + b * kQ8Block),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
}

}  // namespace

void quantize_q8(const float* x, std::size_t n, std::int8_t* codes, std::uint16_t* scales) {
  static const bool vector = host_device().avx2;
  (vector ? quantize_q8_avx2 : quantize_q8_scalar)(x, n / kQ8Block, codes, scales);
}

}  // namespace assay
