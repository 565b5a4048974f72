#include "kernels/base/quant_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/fixed_math.h"
#include "kernels/base/quant_cases.h"
#include "kernels/base/quant_dot.h"
#include "kernels/base/quant_rows_avx2.h"
#include "kernels/base/quant_rows_avx512.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>(rng.below(256));
  return bytes;
}

class Rows16 : public ::testing::TestWithParam<BlockType> {};

TEST_P(Rows16, UnprepareIsTheByteExactInverseForAnyNumberOfRows) {
  const BlockType type = GetParam();
  const int cols = 3 * static_cast<int>(block_elements(type));
  for (const int rows : {16, 17, 31, 32, 50}) {
    const auto file = random_bytes(row_bytes(type, cols) * static_cast<std::size_t>(rows), 11);
    const QuantView view = make_quant_view(file.data(), type, rows, cols);
    ASSERT_TRUE(kRows16.accepts(view));
    ASSERT_EQ(kRows16.prepared_bytes(view), file.size());
    std::vector<std::byte> prepared(file.size());
    kRows16.prepare(view, prepared.data());
    EXPECT_NE(prepared, file);
    auto in_place = file;
    QuantView own = view;
    own.data = in_place.data();
    kRows16.prepare(own, in_place.data());
    EXPECT_EQ(in_place, prepared) << rows;
    std::vector<std::byte> back(file.size());
    QuantView source = view;
    source.data = nullptr;  // unprepare must not read it
    kRows16.unprepare(source, prepared.data(), back.data());
    EXPECT_EQ(back, file) << rows;
    QuantView packed = view;
    packed.data = prepared.data();
    packed.layout = &kRows16;
    std::vector<std::byte> row(view.row_bytes);
    for (int r = 0; r < rows; ++r) {
      const std::byte* got = file_row(packed, r, row.data());
      ASSERT_EQ(std::memcmp(got, view.row(r), view.row_bytes), 0) << r;
    }
  }
}

TEST_P(Rows16, IsThePlacementTheHeaderDraws) {
  const BlockType type = GetParam();
  const int cols = 2 * static_cast<int>(block_elements(type));
  const auto file = random_bytes(row_bytes(type, cols) * 16, 12);
  const QuantView view = make_quant_view(file.data(), type, 16, cols);
  std::vector<std::byte> prepared(file.size());
  kRows16.prepare(view, prepared.data());
  // Block 1's last four code bytes of row 5, by the file's offsets.
  const std::size_t bytes = block_bytes(type);
  const bool scale_last = type == BlockType::kQ6_K;
  const bool two = type == BlockType::kQ4_1 || type == BlockType::kQ5_1 ||
                   type == BlockType::kQ4_K || type == BlockType::kQ5_K;
  const std::size_t halves = two ? 2 : 1;
  const std::size_t lines = (bytes - 2 * halves) / 4;
  const std::byte* in_file = view.row(5) + bytes + (scale_last ? bytes - 6 : bytes - 4);
  EXPECT_EQ(std::memcmp(prepared.data() + (2 * lines - 1) * 64 + 5 * 4, in_file, 4), 0);
  // Its d.
  const std::byte* d = view.row(5) + bytes + (scale_last ? 208 : 0);
  EXPECT_EQ(std::memcmp(prepared.data() + 2 * lines * 64 + halves * 32 + 5 * 2, d, 2), 0);
}

INSTANTIATE_TEST_SUITE_P(AllTypesWithCodes,
                         Rows16,
                         ::testing::Values(BlockType::kQ4_0,
                                           BlockType::kQ4_1,
                                           BlockType::kQ5_0,
                                           BlockType::kQ5_1,
                                           BlockType::kQ8_0,
                                           BlockType::kQ4_K,
                                           BlockType::kQ5_K,
                                           BlockType::kQ6_K),
                         [](const auto& param) { return std::string(to_string(param.param)); });

TEST(Rows16Refuses, WeightsWithoutCodesAndFewerThan16Rows) {
  EXPECT_FALSE(kRows16.accepts(make_quant_view(nullptr, BlockType::kF16, 64, 64)));
  EXPECT_FALSE(kRows16.accepts(make_quant_view(nullptr, BlockType::kQ4_0, 15, 64)));
}

// ---- order of the float operations ----

TEST(QuantDot, ExactTakesElementCToChainCMod32AndHalves) {
  // 2^24 + 1 + 1 .. loses the ones when they are added one by one to the large value, and keeps them when they meet
  // first: the value tells the order.
  std::vector<float> w(96, 0.0F);
  std::vector<float> x(96, 1.0F);
  w[0] = 16777216.0F;
  w[32] = 1.0F;  // same chain as 0, after it: lost
  w[64] = 1.0F;  // lost
  w[1] = 1.0F;   // chain 1 and chain 17 meet in the tree before chain 0 takes them
  w[17] = 1.0F;
  EXPECT_EQ(dot_exact(w.data(), x.data(), 96), 16777218.0F);
  // In chain 16 they meet chain 0 first, one at a time.
  w[1] = w[17] = 0.0F;
  w[16] = 1.0F;
  w[8] = 1.0F;
  EXPECT_EQ(dot_exact(w.data(), x.data(), 96), 16777216.0F);
}

TEST(QuantDot, FastTakesBlockBToChainBMod8AndAddsPairs) {
  // Q8_0 with d = 1, one code a block: block b contributes code * q * dx.
  constexpr int kBlocks = 17;
  std::vector<std::byte> row(34 * kBlocks);
  std::vector<std::int8_t> q(32 * kBlocks);
  std::vector<std::uint16_t> scales(kBlocks, 0x3C00);
  const auto put = [&](int b, int code, int activation, float d) {
    const std::uint16_t half = float_to_half(d);
    std::memcpy(&row[static_cast<std::size_t>(34 * b)], &half, 2);
    row[static_cast<std::size_t>(34 * b + 2)] = static_cast<std::byte>(code);
    q[static_cast<std::size_t>(32 * b)] = static_cast<std::int8_t>(activation);
  };
  put(0, 64, 64, 4096.0F);  // 2^24
  put(8, 1, 1, 1.0F);       // chain 0, after it: lost
  put(16, 1, 1, 1.0F);      // lost
  put(2, 1, 1, 1.0F);       // pair (2, 3)
  put(3, 1, 1, 1.0F);
  const float with_pair =
      dot_fast(BlockType::kQ8_0, row.data(), 32 * kBlocks, q.data(), scales.data());
  EXPECT_EQ(with_pair, 16777218.0F);
  put(3, 0, 0, 0.0F);
  put(1, 1, 1, 1.0F);  // meets chain 0 alone: lost; chain 2 then too
  EXPECT_EQ(dot_fast(BlockType::kQ8_0, row.data(), 32 * kBlocks, q.data(), scales.data()),
            16777216.0F);
}

TEST(QuantDot, ANanResultHasTheOneBitPattern) {
  const float w[2] = {INFINITY, INFINITY};
  const float x[2] = {1.0F, -1.0F};
  EXPECT_EQ(std::bit_cast<std::uint32_t>(dot_exact(w, x, 2)), 0x7FC00000U);
}

// ---- the kernels' small steps ----

std::vector<const RowKernels*> kernel_sets() {
  std::vector<const RowKernels*> sets;
  if (host_device().avx2) sets.push_back(&kRowKernelsAvx2);
  if (host_device().avx512_vnni) sets.push_back(&kRowKernelsAvx512Vnni);
  return sets;
}

TEST(RowKernels, GegluEqualsTheScalarOneInEveryByte) {
  std::vector<float> gate;
  for (float z = 1e-42F; z < 3e38F; z *= 1.37F) {
    gate.push_back(z);
    gate.push_back(-z);
  }
  for (int i = -4000; i < 4000; ++i) gate.push_back(static_cast<float>(i) * 0.0031F);
  for (const float v : {0.0F, -0.0F, INFINITY, -INFINITY, std::nanf("")}) gate.push_back(v);
  while (gate.size() % 16 != 0) gate.push_back(1.0F);
  std::vector<float> up(gate.size());
  Rng rng(5);
  for (auto& v : up) v = static_cast<float>(rng.normal());
  for (const RowKernels* k : kernel_sets()) {
    std::vector<float> u(gate.size());
    k->geglu(gate.data(), up.data(), gate.size(), u.data());
    for (std::size_t i = 0; i < u.size(); ++i) {
      const float want = gelu_fixed(gate[i]) * up[i];
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(u[i])) << gate[i];
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(u[i]), std::bit_cast<std::uint32_t>(want))
            << gate[i];
      }
    }
  }
}

TEST(RowKernels, CombineAddsInRankOrderAndPassesOverEmptySlots) {
  const std::int32_t ids[4] = {3, -1, 0, 3};
  const float weights[4] = {1.0F, std::nanf(""), 1.0F, 1.0F};
  constexpr std::size_t kRows = 19;
  std::vector<float> y(4 * kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    y[i] = 16777216.0F;
    y[kRows + i] = std::nanf("");
    y[2 * kRows + i] = 1.0F;
    y[3 * kRows + i] = -16777216.0F;
  }
  for (const RowKernels* k : kernel_sets()) {
    std::vector<float> out(kRows, -1.0F);
    k->combine(ids, weights, 1, 4, y.data(), kRows, out.data(), kRows);
    for (const float v : out)
      EXPECT_EQ(v, 0.0F);  // the 1 was lost in the large value before that went away
  }
}

}  // namespace
}  // namespace assay
