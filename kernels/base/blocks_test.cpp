#include "kernels/base/blocks.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/quant_cases.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

// Hand-made blocks: fp16 1.0 is 0x3C00, 0.5 is 0x3800, 2.0 is 0x4000, -1.0 is 0xBC00; little-endian.
std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}
std::vector<float> values_of(BlockType type, const std::vector<std::byte>& block) {
  EXPECT_EQ(block.size(), block_bytes(type));
  std::vector<float> out(block_elements(type), -999.0F);
  dequantize(type, block.data(), out.size(), out.data());
  return out;
}
void append(std::vector<std::byte>& block, int value, int count) {
  block.insert(block.end(), static_cast<std::size_t>(count), static_cast<std::byte>(value));
}

TEST(Blocks, Q4_0HoldsElementsJAndJPlus16InByteJ) {
  // Byte j = j low, 15 - j high: element j is j - 8, element j + 16 is 7 - j.
  auto block = bytes_of({0x00, 0x38});  // d = 0.5
  for (int j = 0; j < 16; ++j) block.push_back(static_cast<std::byte>(j | (15 - j) << 4));
  const std::vector<float> want = {-4,  -3.5, -3,   -2.5, -2,   -1.5, -1,   -0.5, 0,    0.5, 1,
                                   1.5, 2,    2.5,  3,    3.5,  3.5,  3,    2.5,  2,    1.5, 1,
                                   0.5, 0,    -0.5, -1,   -1.5, -2,   -2.5, -3,   -3.5, -4};
  EXPECT_EQ(values_of(BlockType::kQ4_0, block), want);
}

TEST(Blocks, Q4_1AddsItsMinimum) {
  auto block = bytes_of({0x00, 0x40, 0x00, 0xBC});  // d = 2, m = -1
  for (int j = 0; j < 16; ++j) block.push_back(static_cast<std::byte>(j | (15 - j) << 4));
  const std::vector<float> want = {-1, 1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29,
                                   29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9,  7,  5,  3,  1,  -1};
  EXPECT_EQ(values_of(BlockType::kQ4_1, block), want);
}

TEST(Blocks, Q5_0TakesBitJOfTheHighWordForElementJ) {
  // qh = 0x0001_8001: elements 0, 15 and 16 get 16 more. Nibbles: low 1, high 2.
  auto block = bytes_of({0x00, 0x3C, 0x01, 0x80, 0x01, 0x00});
  append(block, 0x21, 16);
  std::vector<float> want(32, 1 - 16);
  for (std::size_t j = 16; j < 32; ++j) want[j] = 2 - 16;
  want[0] = want[15] = 1;
  want[16] = 2;
  EXPECT_EQ(values_of(BlockType::kQ5_0, block), want);
}

TEST(Blocks, Q5_1AddsItsMinimumToTheFiveBitCode) {
  auto block =
      bytes_of({0x00, 0x38, 0x00, 0x3C, 0x02, 0x00, 0x00, 0x80});  // d = 0.5, m = 1, bits 1 and 31
  append(block, 0x42, 16);
  std::vector<float> want(32, 2.0F);                     // 0.5 * 2 + 1
  for (std::size_t j = 16; j < 32; ++j) want[j] = 3.0F;  // 0.5 * 4 + 1
  want[1] = 10.0F;                                       // 0.5 * 18 + 1
  want[31] = 11.0F;                                      // 0.5 * 20 + 1
  EXPECT_EQ(values_of(BlockType::kQ5_1, block), want);
}

TEST(Blocks, Q8_0IsSigned) {
  auto block = bytes_of({0x00, 0x40});
  std::vector<float> want;
  for (int j = 0; j < 32; ++j) {
    block.push_back(static_cast<std::byte>(j - 128));
    want.push_back(2.0F * static_cast<float>(j - 128));
  }
  EXPECT_EQ(values_of(BlockType::kQ8_0, block), want);
}

// Scales 1..8 and minima 33..40 of the eight sub-blocks, packed by hand: bytes 0..3 hold scales 1..4, bytes 4..7 minima
// 33..36, bytes 8..11 the low nibbles of scales 5..8 and (high) of minima 37..40; the top two bits of minima 5..8 (2 each)
// go to bits 6 and 7 of bytes 4..7, those of the scales (0) to bytes 0..3.
const std::initializer_list<int> kScales = {1,
                                            2,
                                            3,
                                            4,
                                            33 | 2 << 6,
                                            34 | 2 << 6,
                                            35 | 2 << 6,
                                            36 | 2 << 6,
                                            5 | 5 << 4,
                                            6 | 6 << 4,
                                            7 | 7 << 4,
                                            8 | 8 << 4};

TEST(Blocks, Q4_KUnpacksSixBitScalesAndMinima) {
  auto block = bytes_of({0x00, 0x3C, 0x00, 0x38});  // d = 1, dmin = 0.5
  for (const int b : kScales) block.push_back(static_cast<std::byte>(b));
  for (int c = 0; c < 4; ++c)
    append(block, (2 * c) | (2 * c + 1) << 4, 32);  // the code of sub-block s is s
  std::vector<float> want;
  for (int s = 0; s < 8; ++s) {
    const float v = static_cast<float>((s + 1) * s) - 0.5F * static_cast<float>(33 + s);
    want.insert(want.end(), 32, v);
  }
  EXPECT_EQ(values_of(BlockType::kQ4_K, block), want);
}

TEST(Blocks, Q5_KTakesBitSOfTheHighByteForSubBlockS) {
  auto block = bytes_of({0x00, 0x3C, 0x00, 0x38});
  for (const int b : kScales) block.push_back(static_cast<std::byte>(b));
  for (int l = 0; l < 32; ++l) block.push_back(static_cast<std::byte>(l < 8 ? 1 << l : 0));
  for (int c = 0; c < 4; ++c) append(block, (2 * c) | (2 * c + 1) << 4, 32);
  std::vector<float> want;
  for (int s = 0; s < 8; ++s) {
    for (int l = 0; l < 32; ++l) {
      const int code = s + (l == s ? 16 : 0);
      want.push_back(static_cast<float>((s + 1) * code) - 0.5F * static_cast<float>(33 + s));
    }
  }
  EXPECT_EQ(values_of(BlockType::kQ5_K, block), want);
}

TEST(Blocks, Q6_KCombinesNibbleTwoBitsAndASignedScalePer16) {
  std::vector<std::byte> block;
  append(block, 0x53, 128);  // low nibbles: 3 and 5
  append(block, 0xE4, 64);   // two bits: 0, 1, 2, 3 for g = 0..3
  for (int i = 0; i < 16; ++i) append(block, i % 2 == 0 ? i + 1 : -(i + 1), 1);
  for (const int b : {0x00, 0x38}) append(block, b, 1);  // d = 0.5
  std::vector<float> want;
  for (int e = 0; e < 256; ++e) {
    const int g = e % 128 / 32;
    const int code = (g < 2 ? 3 : 5) + 16 * g - 32;
    const int index = e / 16;
    const int scale = index % 2 == 0 ? index + 1 : -(index + 1);
    want.push_back(0.5F * static_cast<float>(scale * code));
  }
  EXPECT_EQ(values_of(BlockType::kQ6_K, block), want);
}

TEST(Blocks, FloatTypesAreReadAsTheyAre) {
  EXPECT_EQ(values_of(BlockType::kF32, bytes_of({0x00, 0x00, 0x20, 0xC1})),
            std::vector<float>{-10.0F});
  EXPECT_EQ(values_of(BlockType::kF16, bytes_of({0x00, 0xC9})), std::vector<float>{-10.0F});
  EXPECT_EQ(values_of(BlockType::kBF16, bytes_of({0x20, 0xC1})), std::vector<float>{-10.0F});
}

TEST(Blocks, UnpackedCodesGiveTheDequantisedValues) {
  for (const BlockType type : kAllBlockTypes) {
    if (!has_codes(type)) continue;
    constexpr int kCols = 512;
    std::vector<std::byte> row(row_bytes(type, kCols));
    Rng rng(seed_from_name(to_string(type)));
    fill_blocks(row, type, Pattern::kPlain, rng);
    std::vector<float> values(kCols);
    dequantize(type, row.data(), values.size(), values.data());
    for (std::size_t b = 0; b < kCols / 32; ++b) {
      BlockCodes c;
      unpack_codes(type, row.data(), b, c);
      for (std::size_t j = 0; j < 32; ++j) {
        const std::size_t half = j / 16;
        const double want =
            static_cast<double>(half_to_float(c.d)) * c.multiplier[half] * c.code[j] +
            static_cast<double>(half_to_float(c.m)) * c.minimum_multiplier;
        const double size =
            std::fabs(static_cast<double>(half_to_float(c.d)) * c.multiplier[half] * c.code[j]);
        ASSERT_NEAR(values[32 * b + j], want, 1e-6 * (size + std::fabs(want)))
            << to_string(type) << ' ' << b << ' ' << j;
      }
    }
  }
}

TEST(Blocks, QuantisingAndBackStaysWithinHalfAStep) {
  Rng rng(7);
  std::vector<float> x(512);
  for (auto& v : x) v = static_cast<float>(rng.normal());
  struct Want {
    BlockType type;
    double rel_l2;
  };
  for (const auto& [type, bound] : {Want{BlockType::kF32, 0.0},
                                    Want{BlockType::kF16, 4e-4},
                                    Want{BlockType::kBF16, 3e-3},
                                    Want{BlockType::kQ4_0, 0.11},
                                    Want{BlockType::kQ4_1, 0.09},
                                    Want{BlockType::kQ5_0, 0.055},
                                    Want{BlockType::kQ5_1, 0.045},
                                    Want{BlockType::kQ8_0, 0.007},
                                    Want{BlockType::kQ4_K, 0.10},
                                    Want{BlockType::kQ5_K, 0.05},
                                    Want{BlockType::kQ6_K, 0.025}}) {
    std::vector<std::byte> row(row_bytes(type, 512));
    std::vector<float> back(512);
    quantize(type, x.data(), x.size(), row.data());
    dequantize(type, row.data(), back.size(), back.data());
    double error = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += std::pow(static_cast<double>(back[i]) - x[i], 2);
      norm += std::pow(static_cast<double>(x[i]), 2);
    }
    EXPECT_LE(std::sqrt(error / norm), bound) << to_string(type);
  }
}

// ---- fp16 ----

double half_value(unsigned h) {
  const double sign = (h & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>(h >> 10 & 31U);
  const int mantissa = static_cast<int>(h & 1023U);
  if (exponent == 31)
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryCodeHasItsValueAndComesBack) {
  for (unsigned h = 0; h < 65536; ++h) {
    const double want = half_value(h);
    const float got = half_to_float(static_cast<std::uint16_t>(h));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << h;
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(got)))) << h;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), want) << h;
    ASSERT_EQ(std::signbit(got), (h & 0x8000U) != 0) << h;
    ASSERT_EQ(float_to_half(got), h);
  }
}

TEST(Half, BetweenTwoCodesTheNearerWinsAndTheEvenOneOnATie) {
  for (unsigned h = 0; h < 0x7BFFU; ++h) {
    const double below = half_value(h);
    const double above = half_value(h + 1);
    const auto middle = static_cast<float>((below + above) / 2);  // exact in float
    for (const unsigned sign : {0U, 0x8000U}) {
      const float s = sign != 0 ? -1.0F : 1.0F;
      const unsigned even = h % 2 == 0 ? h : h + 1;
      ASSERT_EQ(float_to_half(s * middle), sign | even) << h;
      ASSERT_EQ(float_to_half(s * std::nextafterf(middle, 0.0F)), sign | h) << h;
      ASSERT_EQ(float_to_half(s * std::nextafterf(middle, 1e9F)), sign | (h + 1)) << h;
    }
  }
  EXPECT_EQ(float_to_half(65519.996F), 0x7BFFU);
  EXPECT_EQ(float_to_half(65520.0F), 0x7C00U);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::infinity()), 0x7C00U);
  EXPECT_EQ(float_to_half(-1e30F), 0xFC00U);
  EXPECT_EQ(float_to_half(0x1p-26F), 0U);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0U);
}

TEST(Bfloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3F80U);
  EXPECT_EQ(float_to_bf16(1.00390625F), 0x3F80U);  // halfway, to even
  EXPECT_EQ(float_to_bf16(1.01171875F), 0x3F82U);  // halfway, to even
  EXPECT_EQ(float_to_bf16(1.0039064F), 0x3F81U);
  EXPECT_EQ(float_to_bf16(3.4028235e38F), 0x7F80U);  // rounds to infinity
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::nanf("")))));
}

// ---- int8 activations ----

struct Q8Block {
  std::int8_t codes[32];
  std::uint16_t scale;
};
Q8Block q8_of(const std::vector<float>& x) {
  Q8Block b{};
  quantize_q8(x.data(), 32, b.codes, &b.scale);
  return b;
}

TEST(Q8, RoundsHalfAwayFromZero) {
  std::vector<float> x(32, 0.0F);
  x[0] = 127.0F;  // d = 1
  x[1] = 0.5F;
  x[2] = -0.5F;
  x[3] = 1.5F;
  x[4] = -2.5F;
  x[5] = 0.49999997F;
  x[6] = -0.49999997F;
  x[7] = 126.5F;
  x[8] = 2.4999998F;
  const Q8Block b = q8_of(x);
  EXPECT_EQ(b.scale, 0x3C00U);
  const std::vector<int> want = {127, 1, -1, 2, -3, 0, 0, 127, 2};
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(b.codes[i], want[i]) << i;
}

TEST(Q8, UsesTheFloatScaleForCodesAndStoresItRounded) {
  std::vector<float> x(32, 0.0F);
  x[0] = -1.0F;
  x[1] = 0.5F;
  const Q8Block b = q8_of(x);
  EXPECT_EQ(b.scale, float_to_half(1.0F / 127.0F));
  EXPECT_EQ(b.codes[0], -127);
  EXPECT_EQ(b.codes[1], 64);  // 63.5 away from zero
}

TEST(Q8, AnAllZeroBlockIsZero) {
  std::vector<float> x(32, 0.0F);
  x[3] = -0.0F;
  const Q8Block b = q8_of(x);
  EXPECT_EQ(b.scale, 0U);
  for (const auto c : b.codes) EXPECT_EQ(c, 0);
}

TEST(Q8, LargestMagnitudesOfBothSignsReach127) {
  std::vector<float> x(32, 3.0e38F);
  for (std::size_t i = 0; i < 32; i += 2) x[i] = -x[i];
  const Q8Block b = q8_of(x);
  EXPECT_EQ(b.scale, 0x7C00U);  // beyond fp16
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(b.codes[i], i % 2 == 0 ? -127 : 127);
}

TEST(Q8, SubnormalInputsKeepTheirCodesThoughTheScaleVanishes) {
  std::vector<float> x(32, std::numeric_limits<float>::denorm_min());
  x[1] = 200 * std::numeric_limits<float>::denorm_min();
  const Q8Block b = q8_of(x);
  EXPECT_EQ(b.scale, 0U);
  EXPECT_EQ(b.codes[1], 100);  // d = 200 / 127 of the smallest number rounds to 2 of them
}

TEST(Q8, ABlockWithANanOrAnInfinityIsANanScaleWithZeroCodes) {
  for (const float bad : {std::nanf(""),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{31}}) {
      std::vector<float> x(32, 1.0F);
      x[at] = bad;
      const Q8Block b = q8_of(x);
      EXPECT_EQ(b.scale, 0x7E00U);
      for (const auto c : b.codes) EXPECT_EQ(c, 0);
    }
  }
}

// The definition, one value at a time, on values that a fast version may get wrong.
TEST(Q8, AgreesWithTheDefinitionOnTiesAndRandomValues) {
  Rng rng(3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> x(32);
    const float size = std::ldexp(1.0F, static_cast<int>(rng.below(60)) - 30);
    for (auto& v : x) {
      const float plain = static_cast<float>(rng.normal());
      const float tie = (static_cast<float>(rng.below(128)) + 0.5F) / 127.0F;
      v = size * (rng.below(2) == 0 ? plain : tie);
    }
    float amax = 0.0F;
    for (const float v : x) amax = std::max(amax, std::fabs(v));
    const float d = amax / 127.0F;
    const Q8Block b = q8_of(x);
    ASSERT_EQ(b.scale, float_to_half(d));
    for (std::size_t i = 0; i < 32; ++i) {
      ASSERT_EQ(static_cast<float>(b.codes[i]),
                std::fmin(127.0F, std::fmax(-127.0F, std::roundf(x[i] / d))))
          << x[i] << ' ' << d;
    }
  }
}

TEST(Blocks, NamesAndIdsGoBothWays) {
  for (const BlockType type : kAllBlockTypes) {
    EXPECT_EQ(parse_block_type(to_string(type)), type);
    EXPECT_EQ(block_type_from_id(static_cast<std::uint32_t>(type)), type);
  }
  EXPECT_FALSE(parse_block_type("q3_k").has_value());
  EXPECT_FALSE(block_type_from_id(9).has_value());  // Q8_1 is never in a file
}

}  // namespace
}  // namespace assay
