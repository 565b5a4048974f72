#include "kernels/pointwise/pointwise.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/rng.h"

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

}  // namespace
}  // namespace assay
