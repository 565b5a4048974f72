#include "kernels/base/expert_ffn.h"

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/fixed_math.h"
#include "kernels/base/quant_cases.h"
#include "kernels/base/quant_dot.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

TEST(BucketSlots, SortsByExpertThenSlotAndLeavesEmptySlotsOut) {
  const std::int32_t ids[] = {2, 0, /**/ -1, 2, /**/ 0, 0, /**/ 9, 9};
  ExpertFfn c;
  c.tokens = 4;
  c.experts = 4;
  c.top_k = 2;
  c.ids = ids;
  std::vector<std::int32_t> begin(5, -7);
  std::vector<std::int32_t> slots(6, -7);
  bucket_slots(c, 0, 3, begin, slots);  // the fourth token is not part of the pass
  EXPECT_EQ(begin, (std::vector<std::int32_t>{0, 3, 3, 5, 5}));
  EXPECT_EQ((std::vector<std::int32_t>(slots.begin(), slots.begin() + 5)),
            (std::vector<std::int32_t>{1, 4, 5, 0, 3}));
}

TEST(BucketSlots, NumbersSlotsOfALaterPassWithinTheWholeCall) {
  const std::int32_t ids[] = {0, 1, 1, 0};
  ExpertFfn c;
  c.tokens = 4;
  c.experts = 2;
  c.top_k = 1;
  c.ids = ids;
  std::vector<std::int32_t> begin(3);
  std::vector<std::int32_t> slots(2);
  bucket_slots(c, 2, 2, begin, slots);
  EXPECT_EQ(begin, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(slots, (std::vector<std::int32_t>{3, 2}));
}

// The contract of experts_host and experts_prefill, written out for one token at a time from its parts.
class ExpertFfnParts : public ::testing::TestWithParam<bool> {};

TEST_P(ExpertFfnParts, ScalarRunEqualsTheSumOfItsPartsInEveryByte) {
  const bool q8 = GetParam();
  constexpr int kTokens = 5;
  constexpr std::size_t kHidden = 96;
  constexpr std::size_t kWidth = 64;
  constexpr int kExperts = 4;
  constexpr std::size_t kTopK = 3;
  Rng rng(21);
  std::vector<std::byte> gate_up(row_bytes(BlockType::kQ4_0, kHidden) * kExperts * 2 * kWidth);
  std::vector<std::byte> down(row_bytes(BlockType::kQ5_0, kWidth) * kExperts * kHidden);
  fill_blocks(gate_up, BlockType::kQ4_0, Pattern::kPlain, rng);
  fill_blocks(down, BlockType::kQ5_0, Pattern::kPlain, rng);
  std::vector<float> x(kTokens * kHidden);
  fill_activations(x, Pattern::kPlain, rng);
  std::vector<std::int8_t> codes(x.size());
  std::vector<std::uint16_t> scales(x.size() / 32);
  quantize_q8(x.data(), x.size(), codes.data(), scales.data());
  std::vector<std::int32_t> ids(kTokens * kTopK);
  std::vector<float> weights(ids.size());
  fill_routing(ids, weights, kTopK, kExperts, Routing::kHoles, rng);
  ids[0] = ids[1] = 2;  // one expert twice in a token
  std::vector<float> out(x.size(), NAN);

  ExpertFfn c;
  c.tokens = kTokens;
  c.hidden = kHidden;
  c.width = kWidth;
  c.experts = kExperts;
  c.top_k = kTopK;
  c.reads_q8 = c.down_reads_q8 = q8;
  c.gate_up = make_quant_view(gate_up.data(), BlockType::kQ4_0, kExperts * 2 * kWidth, kHidden);
  c.down = make_quant_view(down.data(), BlockType::kQ5_0, kExperts * kHidden, kWidth);
  c.ids = ids.data();
  c.weights = weights.data();
  c.x = x.data();
  c.xq = {codes.data(), scales.data()};
  c.out = out.data();
  std::vector<std::byte> workspace(expert_ffn_workspace_bytes(c) + 64);
  auto* aligned =
      workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
  run_expert_ffn_scalar(c, {aligned, workspace.size() - 64}, nullptr);

  const auto product = [&](const QuantView& w,
                           std::size_t row,
                           const float* in,
                           const std::int8_t* q,
                           const std::uint16_t* d) {
    const std::byte* bytes = w.row(static_cast<int>(row));
    const auto n = static_cast<std::size_t>(w.cols);
    if (q8) return dot_fast(w.type, bytes, n, q, d);
    std::vector<float> values(n);
    dequantize(w.type, bytes, n, values.data());
    return dot_exact(values.data(), in, n);
  };
  for (std::size_t t = 0; t < kTokens; ++t) {
    std::vector<float> want(kHidden, 0.0F);
    for (std::size_t k = 0; k < kTopK; ++k) {
      const std::int32_t e = ids[t * kTopK + k];
      if (e < 0) continue;
      const auto expert = static_cast<std::size_t>(e);
      float u[kWidth];
      for (std::size_t f = 0; f < kWidth; ++f) {
        const auto* q = &codes[t * kHidden];
        const auto* d = &scales[t * kHidden / 32];
        const float g = product(c.gate_up, expert * 2 * kWidth + f, &x[t * kHidden], q, d);
        const float v = product(c.gate_up, expert * 2 * kWidth + kWidth + f, &x[t * kHidden], q, d);
        u[f] = gelu_fixed(g) * v;
      }
      std::int8_t uq[kWidth];
      std::uint16_t ud[kWidth / 32];
      quantize_q8(u, kWidth, uq, ud);
      for (std::size_t r = 0; r < kHidden; ++r) {
        want[r] = std::fma(
            weights[t * kTopK + k], product(c.down, expert * kHidden + r, u, uq, ud), want[r]);
      }
    }
    ASSERT_EQ(std::memcmp(std::as_bytes(std::span(want)).data(),
                          std::as_bytes(std::span(out)).data() + sizeof(float) * t * kHidden,
                          sizeof(float) * kHidden),
              0)
        << "token " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, ExpertFfnParts, ::testing::Bool(), [](const auto& param) {
  return param.param ? "fast" : "exact";
});

}  // namespace
}  // namespace assay
