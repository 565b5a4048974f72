// blocks.h for kernels: element values and integer codes of every block format, the same formulas with the same rounding.
// Pointers need 2-byte alignment only, as GGUF guarantees no more.
#pragma once
#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/base/blocks.h"
#include "kernels/base/device_math.cuh"

namespace assay::device {

// Facts of a format at compile time.
template <BlockType T>
struct Format;
#define ASSAY_FORMAT(type, elements_, bytes_, minimum_) \
  template <>                                           \
  struct Format<BlockType::type> {                      \
    static constexpr int kElements = elements_;         \
    static constexpr int kBytes = bytes_;               \
    /* Whether a value is d * code - or + a minimum. */ \
    static constexpr bool kMinimum = minimum_;          \
    static constexpr bool kSuper = elements_ == 256;    \
  }
ASSAY_FORMAT(kF32, 1, 4, false);
ASSAY_FORMAT(kF16, 1, 2, false);
ASSAY_FORMAT(kBF16, 1, 2, false);
ASSAY_FORMAT(kQ4_0, 32, 18, false);
ASSAY_FORMAT(kQ4_1, 32, 20, true);
ASSAY_FORMAT(kQ5_0, 32, 22, false);
ASSAY_FORMAT(kQ5_1, 32, 24, true);
ASSAY_FORMAT(kQ8_0, 32, 34, false);
ASSAY_FORMAT(kQ4_K, 256, 144, true);
ASSAY_FORMAT(kQ5_K, 256, 176, true);
ASSAY_FORMAT(kQ6_K, 256, 210, false);
#undef ASSAY_FORMAT

__device__ inline int load8(const std::byte* p) {
  return static_cast<int>(*reinterpret_cast<const std::uint8_t*>(p));
}
__device__ inline std::uint16_t load16(const std::byte* p) {
  return *reinterpret_cast<const std::uint16_t*>(p);
}
__device__ inline std::uint32_t load32(const std::byte* p) {
  return static_cast<std::uint32_t>(load16(p)) | (static_cast<std::uint32_t>(load16(p + 2)) << 16);
}
__device__ inline float load_half(const std::byte* p) { return half_bits_to_float(load16(p)); }

// 6-bit scale and minimum of sub-block s in the 12 bytes of Q4_K and Q5_K.
__device__ inline void k_scale_min(const std::byte* packed, int s, int& scale, int& minimum) {
  if (s < 4) {
    scale = load8(packed + s) & 63;
    minimum = load8(packed + s + 4) & 63;
  } else {
    scale = (load8(packed + s + 4) & 15) | ((load8(packed + s - 4) >> 6) << 4);
    minimum = (load8(packed + s + 4) >> 4) | ((load8(packed + s) >> 6) << 4);
  }
}

// Element c of a row: dequantize() of blocks.h.
template <BlockType T>
__device__ inline float element(const std::byte* row, int c) {
  const int j = c % Format<T>::kElements;
  const std::byte* p = row + static_cast<std::size_t>(c / Format<T>::kElements) * Format<T>::kBytes;
  if constexpr (T == BlockType::kF32) {
    return __uint_as_float(load32(p));
  } else if constexpr (T == BlockType::kF16) {
    return load_half(p);
  } else if constexpr (T == BlockType::kBF16) {
    return __uint_as_float(static_cast<std::uint32_t>(load16(p)) << 16);
  } else if constexpr (T == BlockType::kQ8_0) {
    const auto code = static_cast<std::int8_t>(load8(p + 2 + j));
    return __fmul_rn(load_half(p), static_cast<float>(code));
  } else if constexpr (T == BlockType::kQ4_K || T == BlockType::kQ5_K) {
    constexpr bool kFive = T == BlockType::kQ5_K;
    const int s = j / 32;
    const int l = j % 32;
    int scale = 0;
    int minimum = 0;
    k_scale_min(p + 4, s, scale, minimum);
    const int byte = load8(p + (kFive ? 48 : 16) + 32 * (s / 2) + l);
    int q = s % 2 == 0 ? byte & 15 : byte >> 4;
    if constexpr (kFive) q += ((load8(p + 16 + l) >> s) & 1) << 4;
    const float ds = __fmul_rn(load_half(p), static_cast<float>(scale));
    const float dm = __fmul_rn(load_half(p + 2), static_cast<float>(minimum));
    return __fsub_rn(__fmul_rn(ds, static_cast<float>(q)), dm);
  } else if constexpr (T == BlockType::kQ6_K) {
    const int n = j / 128;
    const int g = j % 128 / 32;
    const int l = j % 32;
    const int byte = load8(p + 64 * n + 32 * (g & 1) + l);
    const int low = g < 2 ? byte & 15 : byte >> 4;
    const int high = (load8(p + 128 + 32 * n + l) >> (2 * g)) & 3;
    const auto scale = static_cast<std::int8_t>(load8(p + 192 + 8 * n + 2 * g + l / 16));
    const float ds = __fmul_rn(load_half(p + 208), static_cast<float>(scale));
    return __fmul_rn(ds, static_cast<float>((low | (high << 4)) - 32));
  } else {
    // The four formats of 32 nibbles: byte j holds elements j (low) and j + 16 (high).
    constexpr bool kFive = T == BlockType::kQ5_0 || T == BlockType::kQ5_1;
    constexpr int kHigh = Format<T>::kMinimum ? 4 : 2;  // where the fifth bits lie
    constexpr int kCodes = kHigh + (kFive ? 4 : 0);
    const int byte = load8(p + kCodes + j % 16);
    int q = j < 16 ? byte & 15 : byte >> 4;
    if constexpr (kFive) q |= static_cast<int>((load32(p + kHigh) >> j) & 1U) << 4;
    const float d = load_half(p);
    if constexpr (Format<T>::kMinimum) {
      return __fadd_rn(__fmul_rn(d, static_cast<float>(q)), load_half(p + 2));
    } else {
      return __fmul_rn(d, static_cast<float>(q - (kFive ? 16 : 8)));
    }
  }
}

// One block of 32 elements against 32 int8 activations (as eight words), as the fast lane's sum sees it: quant_dot.cpp's
// block_term. Integers are exact, so their order is free.
struct BlockTerm {
  int product;    // I; for the K types times their 6 or 8 bit scales
  int offset;     // Q, or mn * Q; meaningful where Format::kMinimum
  float scale;    // d
  float minimum;  // m, or -dmin
};

// Spreads four bits to the fifth-bit places of four code bytes.
__device__ inline std::uint32_t fifth_bits(std::uint32_t four) {
  return ((four & 1U) << 4) | ((four & 2U) << 11) | ((four & 4U) << 18) | ((four & 8U) << 25);
}

// b: index of the 32 elements in the row. q: their activations.
template <BlockType T>
__device__ inline BlockTerm block_term(const std::byte* row, int b, const int (&q)[8]) {
  constexpr int kPerBlock = Format<T>::kElements / 32;
  const std::byte* p = row + static_cast<std::size_t>(b / kPerBlock) * Format<T>::kBytes;
  BlockTerm term{0, 0, 0.0F, 0.0F};
  int sum = 0;
  if constexpr (Format<T>::kMinimum || T == BlockType::kQ4_0 || T == BlockType::kQ5_0) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __dp4a(0x01010101, q[i], sum);
  }
  if constexpr (T == BlockType::kQ8_0) {
    term.scale = load_half(p);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      term.product = __dp4a(static_cast<int>(load32(p + 2 + 4 * i)), q[i], term.product);
    }
  } else if constexpr (T == BlockType::kQ4_K || T == BlockType::kQ5_K) {
    constexpr bool kFive = T == BlockType::kQ5_K;
    const int s = b % 8;
    int scale = 0;
    int minimum = 0;
    k_scale_min(p + 4, s, scale, minimum);
    const std::byte* qs = p + (kFive ? 48 : 16) + 32 * (s / 2);
    int dot = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t codes = (load32(qs + 4 * i) >> (s % 2 == 0 ? 0 : 4)) & 0x0F0F0F0FU;
      if constexpr (kFive) codes |= ((load32(p + 16 + 4 * i) >> s) & 0x01010101U) << 4;
      dot = __dp4a(static_cast<int>(codes), q[i], dot);
    }
    term.product = scale * dot;
    term.offset = minimum * sum;
    term.scale = load_half(p);
    term.minimum = -load_half(p + 2);
  } else if constexpr (T == BlockType::kQ6_K) {
    const int n = b % 8 / 4;
    const int g = b % 4;
    int dot[2] = {0, 0};
    int sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t bytes = load32(p + 64 * n + 32 * (g & 1) + 4 * i);
      const std::uint32_t low = (g < 2 ? bytes : bytes >> 4) & 0x0F0F0F0FU;
      const std::uint32_t high = (load32(p + 128 + 32 * n + 4 * i) >> (2 * g)) & 0x03030303U;
      dot[i / 4] = __dp4a(static_cast<int>(low | (high << 4)), q[i], dot[i / 4]);
      sums[i / 4] = __dp4a(0x01010101, q[i], sums[i / 4]);
    }
    const std::byte* scales = p + 192 + 8 * n + 2 * g;
    term.product = static_cast<std::int8_t>(load8(scales)) * (dot[0] - 32 * sums[0]) +
                   static_cast<std::int8_t>(load8(scales + 1)) * (dot[1] - 32 * sums[1]);
    term.scale = load_half(p + 208);
  } else {
    constexpr bool kFive = T == BlockType::kQ5_0 || T == BlockType::kQ5_1;
    constexpr int kHigh = Format<T>::kMinimum ? 4 : 2;
    constexpr int kCodes = kHigh + (kFive ? 4 : 0);
    std::uint32_t fifth = 0;
    if constexpr (kFive) fifth = load32(p + kHigh);
    int dot = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t bytes = load32(p + kCodes + 4 * i);
      std::uint32_t low = bytes & 0x0F0F0F0FU;
      std::uint32_t high = (bytes >> 4) & 0x0F0F0F0FU;
      if constexpr (kFive) {
        low |= fifth_bits(fifth >> (4 * i));
        high |= fifth_bits(fifth >> (16 + 4 * i));
      }
      dot = __dp4a(static_cast<int>(low), q[i], dot);
      dot = __dp4a(static_cast<int>(high), q[i + 4], dot);
    }
    term.scale = load_half(p);
    if constexpr (Format<T>::kMinimum) {
      term.product = dot;
      term.offset = sum;
      term.minimum = load_half(p + 2);
    } else {
      term.product = dot - (kFive ? 16 : 8) * sum;
    }
  }
  return term;
}

// A term into its chain, as quant_dot.h orders it. dx: the activation block's scale.
template <BlockType T>
__device__ inline float add_term(const BlockTerm& term, float dx, float chain) {
  chain = __fmaf_rn(__fmul_rn(term.scale, dx), static_cast<float>(term.product), chain);
  if constexpr (Format<T>::kMinimum) {
    chain = __fmaf_rn(__fmul_rn(term.minimum, dx), static_cast<float>(term.offset), chain);
  }
  return chain;
}

// quantize_q8 for one block of 32, a lane an element, by a whole warp: returns this lane's code; every lane gets the
// scale's bits.
__device__ inline std::int8_t quantize_q8_lane(float x, std::uint16_t& scale_bits) {
  const float magnitude = fabsf(x);
  constexpr unsigned kAll = 0xFFFFFFFFU;
  const bool finite = __all_sync(kAll, magnitude < __uint_as_float(0x7F800000U)) != 0;
  float amax = magnitude;
#pragma unroll
  for (int h = 16; h >= 1; h /= 2) amax = fmaxf(amax, __shfl_xor_sync(kAll, amax, h));
  const float d = __fdiv_rn(amax, 127.0F);
  scale_bits = finite ? float_to_half_bits(d) : std::uint16_t{0x7E00};
  if (!finite || !(d > 0.0F)) return 0;
  return static_cast<std::int8_t>(fminf(fmaxf(roundf(__fdiv_rn(x, d)), -127.0F), 127.0F));
}

// Calls f.template operator()<T>() with the format as a constant.
template <class F>
void for_format(BlockType type, F&& f) {
  switch (type) {
    case BlockType::kF32:
      return f.template operator()<BlockType::kF32>();
    case BlockType::kF16:
      return f.template operator()<BlockType::kF16>();
    case BlockType::kBF16:
      return f.template operator()<BlockType::kBF16>();
    case BlockType::kQ4_0:
      return f.template operator()<BlockType::kQ4_0>();
    case BlockType::kQ4_1:
      return f.template operator()<BlockType::kQ4_1>();
    case BlockType::kQ5_0:
      return f.template operator()<BlockType::kQ5_0>();
    case BlockType::kQ5_1:
      return f.template operator()<BlockType::kQ5_1>();
    case BlockType::kQ8_0:
      return f.template operator()<BlockType::kQ8_0>();
    case BlockType::kQ4_K:
      return f.template operator()<BlockType::kQ4_K>();
    case BlockType::kQ5_K:
      return f.template operator()<BlockType::kQ5_K>();
    case BlockType::kQ6_K:
      return f.template operator()<BlockType::kQ6_K>();
  }
}
// The same for the formats with integer codes only.
template <class F>
void for_coded_format(BlockType type, F&& f) {
  if (has_codes(type)) {
    for_format(type, [&]<BlockType T>() {
      if constexpr (T != BlockType::kF32 && T != BlockType::kF16 && T != BlockType::kBF16) {
        f.template operator()<T>();
      }
    });
  }
}

}  // namespace assay::device
