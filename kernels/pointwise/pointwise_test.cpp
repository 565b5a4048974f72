#include "kernels/pointwise/pointwise.h"

#include <bit>
#include <cmath>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/device_info.h"
#include "kernels/base/fixed_math.h"
#include "kernels/base/rng.h"
#include "kernels/pointwise/rows.h"

namespace assay {
namespace {

TEST(Pointwise, RmsNormMultipliesByThePlainWeight) {
  const float x[2] = {3.0F, 4.0F};
  const float w[2] = {1.0F, 0.5F};
  float y[2];
  pointwise::rms_norm(x, w, 2, 0.0F, y);  // rms = sqrt(12.5)
  EXPECT_NEAR(y[0], 0.848528137, 1e-7);
  EXPECT_NEAR(y[1], 0.565685425, 1e-7);
  pointwise::rms_norm(x, nullptr, 2, 12.5F, y);  // eps lies inside the root: sqrt(25)
  EXPECT_NEAR(y[0], 0.6, 1e-7);
  EXPECT_NEAR(y[1], 0.8, 1e-7);
}

TEST(Pointwise, RopePairsHalvesAndUsesTheHeadSizeInTheExponent) {
  // head_dim 4, base 100: theta = p * {1, 0.1}; pairs (0, 2) and (1, 3).
  float c[2];
  float s[2];
  double f[2];
  pointwise::rope_frequencies(100.0, 4, nullptr, f);
  pointwise::rope_angles(1, f, 2, c, s);
  float x[4] = {1.0F, 1.0F, 0.0F, 0.0F};
  pointwise::rope(x, 4, c, s);
  EXPECT_NEAR(x[0], 0.540302306, 1e-7);
  EXPECT_NEAR(x[1], 0.995004165, 1e-7);
  EXPECT_NEAR(x[2], 0.841470985, 1e-7);
  EXPECT_NEAR(x[3], 0.099833417, 1e-7);
}

TEST(Pointwise, RopeFactorsOf1e30LeaveTheirPairsAlone) {
  const float factors[4] = {1.0F, 1.0F, 1e30F, 1e30F};
  float c[4];
  float s[4];
  double f[4];
  pointwise::rope_frequencies(1e6, 8, factors, f);
  pointwise::rope_angles(250, f, 4, c, s);
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  pointwise::rope(x, 8, c, s);
  EXPECT_EQ(x[2], 3.0F);
  EXPECT_EQ(x[3], 4.0F);
  EXPECT_EQ(x[6], 7.0F);
  EXPECT_EQ(x[7], 8.0F);
  EXPECT_NEAR(x[0], 1 * std::cos(250.0) - 5 * std::sin(250.0), 1e-6);
  EXPECT_NEAR(x[5],
              6 * std::cos(250.0 / std::sqrt(1000.0)) + 2 * std::sin(250.0 / std::sqrt(1000.0)),
              1e-6);
}

TEST(Pointwise, RopeAnglesStayAccurateAtTheEndOfTheContext) {
  float c[256];
  float s[256];
  double f[256];
  pointwise::rope_frequencies(1e4, 512, nullptr, f);
  pointwise::rope_angles(262143, f, 256, c, s);
  EXPECT_NEAR(c[0], std::cos(262143.0), 1e-7);
  for (int i = 0; i < 256; ++i) EXPECT_NEAR(c[i] * c[i] + s[i] * s[i], 1.0, 3e-7);
}

TEST(Pointwise, SoftcapStaysBelowTheCapAndKeepsTheSign) {
  float l[4] = {3.0F, -3.0F, 1000.0F, 0.0F};
  pointwise::softcap(l, 4, 30.0F);
  EXPECT_NEAR(l[0], 2.990039840, 1e-6);
  EXPECT_EQ(l[1], -l[0]);
  EXPECT_LE(l[2], 30.0F);
  EXPECT_EQ(l[3], 0.0F);
}

TEST(Pointwise, CacheRowsAreRoundedToNearestEvenHalf) {
  const float x[3] = {1.0F, 1.00048828125F, -2.5F};
  std::uint16_t h[3];
  pointwise::store_kv(x, 3, {.f16 = h});
  EXPECT_EQ(h[0], 0x3C00);
  EXPECT_EQ(h[1], 0x3C00);  // halfway between 1 and the next half: even
  EXPECT_EQ(h[2], 0xC100);
}

TEST(Pointwise, GegluActivatesTheGateOnly) {
  const float gate[2] = {-1.5F, 3.0F};
  const float up[2] = {2.0F, -1.0F};
  float u[2];
  pointwise::geglu(gate, up, 2, u);
  EXPECT_NEAR(u[0], -0.2008568, 2e-6);
  EXPECT_NEAR(u[1], -2.9963626, 2e-6);
}

TEST(Pointwise, SoftmaxSumsToOne) {
  Rng rng(7);
  std::vector<float> x(61);
  for (auto& v : x) v = static_cast<float>(4.0 * rng.normal());
  std::vector<float> p(61);
  pointwise::softmax(x.data(), 61, p.data());
  double sum = 0.0;
  for (const float v : p) sum += v;
  EXPECT_NEAR(sum, 1.0, 1e-6);
  EXPECT_NEAR(p[3] / p[9], std::exp(static_cast<double>(x[3]) - x[9]), 1e-5 * p[3] / p[9]);
}

// ---- every instruction set gives the contract's bits ----

struct Named {
  const char* name;
  const pointwise::Rows* rows;
};
std::vector<Named> tables() {
  std::vector<Named> all = {{"plain", &pointwise::kRowsPlain}};
  if (host_device().avx2) all.push_back({"avx2", &pointwise::kRowsAvx2});
  if (host_device().avx512_vnni) all.push_back({"avx512", &pointwise::kRowsAvx512});
  return all;
}
// Ordinary values with some at the edges of the functions and of half precision.
std::vector<float> row(const char* name, int n) {
  Rng rng(seed_from_name(name));
  std::vector<float> x(static_cast<std::size_t>(n));
  for (auto& v : x) v = static_cast<float>(3.0 * rng.normal());
  const float edges[] = {0.0F, -0.0F, 1e-41F, 6e-8F, 90.0F, -90.0F, 65520.0F, INFINITY, -INFINITY};
  for (std::size_t i = 0; i < std::size(edges) && 3 * i + 2 < x.size(); ++i)
    x[3 * i + 2] = edges[i];
  return x;
}
void expect_bits(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << what << " element " << i;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(want[i]))
          << what << " element " << i << " of " << want.size() << ": " << got[i] << ", not "
          << want[i];
    }
  }
}

TEST(Pointwise, EveryInstructionSetGivesTheContractsBits) {
  for (const auto& [name, rows] : tables()) {
    for (const int n : {1, 2, 15, 16, 17, 32, 61, 64, 256}) {
      const auto size = static_cast<std::size_t>(n);
      const auto x = row("x", n);
      const auto w = row("w", n);
      std::vector<float> want(size);
      std::vector<float> got(size);

      rows->scale_row(x.data(), 0.7F, w.data(), n, got.data());
      for (std::size_t i = 0; i < size; ++i) want[i] = (x[i] * 0.7F) * w[i];
      expect_bits(got, want, name);
      rows->scale_row(x.data(), 0.7F, nullptr, n, got.data());
      for (std::size_t i = 0; i < size; ++i) want[i] = x[i] * 0.7F;
      expect_bits(got, want, name);

      rows->geglu(x.data(), w.data(), n, got.data());
      for (std::size_t i = 0; i < size; ++i) want[i] = gelu_fixed(x[i]) * w[i];
      expect_bits(got, want, name);
      rows->add(x.data(), w.data(), n, got.data());
      for (std::size_t i = 0; i < size; ++i) want[i] = x[i] + w[i];
      expect_bits(got, want, name);
      rows->add_scaled(x.data(), w.data(), 0.3F, n, got.data());
      for (std::size_t i = 0; i < size; ++i) want[i] = (x[i] + w[i]) * 0.3F;
      expect_bits(got, want, name);
      got = x;
      rows->softcap(got.data(), n, 30.0F);
      for (std::size_t i = 0; i < size; ++i) want[i] = 30.0F * tanh_fixed(x[i] / 30.0F);
      expect_bits(got, want, name);

      std::vector<std::uint16_t> half(size);
      rows->to_half(x.data(), n, half.data());
      for (std::size_t i = 0; i < size; ++i) EXPECT_EQ(half[i], float_to_half(x[i])) << name;

      Rng rng(9);
      auto finite = x;
      for (auto& v : finite) v = static_cast<float>(rng.normal());
      float chain[16] = {};
      for (std::size_t i = 0; i < size; ++i)
        chain[i % 16] = std::fma(finite[i], finite[i], chain[i % 16]);
      for (int h = 8; h >= 1; h /= 2) {
        for (int c = 0; c < h; ++c) chain[c] += chain[c + h];
      }
      expect_bits({rows->rms_scale(finite.data(), n, 1e-6F)},
                  {1.0F / std::sqrt(chain[0] / static_cast<float>(n) + 1e-6F)},
                  name);

      auto head = row("head", 2 * n);
      auto turned = head;
      rows->rope(turned.data(), 2 * n, finite.data(), w.data());
      for (std::size_t i = 0; i < size; ++i) {
        const float a = head[i];
        const float b = head[size + i];
        head[i] = a * finite[i] - b * w[i];
        head[size + i] = b * finite[i] + a * w[i];
      }
      expect_bits(turned, head, name);
    }
  }
}

}  // namespace
}  // namespace assay
