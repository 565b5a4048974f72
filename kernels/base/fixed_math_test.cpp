#include "kernels/base/fixed_math.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

#include "kernels/base/measure.h"

namespace assay {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(FixedMath, ExpStaysWithinTwoUlpOfTheDoubleResult) {
  std::uint64_t worst = 0;
  for (double x = -87.3; x <= 88.3; x += 0.00037) {
    const auto f = static_cast<float>(x);
    const auto want = static_cast<float>(std::exp(static_cast<double>(f)));
    worst = std::max(worst, ulp_distance(exp_fixed(f), want));
  }
  EXPECT_LE(worst, 2U);
}

TEST(FixedMath, TanhStaysWithinThreeUlpAlsoNearZero) {
  std::uint64_t worst = 0;
  for (double x = 1e-30; x < 20.0; x *= 1.0007) {
    for (const double s : {x, -x}) {
      const auto f = static_cast<float>(s);
      const auto want = static_cast<float>(std::tanh(static_cast<double>(f)));
      worst = std::max(worst, ulp_distance(tanh_fixed(f), want));
    }
  }
  EXPECT_LE(worst, 3U);
}

TEST(FixedMath, GeluIsTheTanhFormAndNeitherErfNorSilu) {
  EXPECT_NEAR(gelu_fixed(-1.5F), -0.1004284, 1e-6);
  EXPECT_NEAR(gelu_fixed(0.7F), 0.5305701, 1e-6);
  EXPECT_NEAR(gelu_fixed(3.0F), 2.9963626, 1e-6);
}

TEST(FixedMath, EdgesAreWhatTheHeaderSays) {
  EXPECT_EQ(exp_fixed(0.0F), 1.0F);
  EXPECT_EQ(exp_fixed(-0.0F), 1.0F);
  EXPECT_EQ(exp_fixed(-kInf), 0.0F);
  EXPECT_EQ(exp_fixed(-100.0F), 0.0F);
  EXPECT_EQ(exp_fixed(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp_fixed(kNan)));
  EXPECT_EQ(tanh_fixed(kInf), 1.0F);
  EXPECT_EQ(tanh_fixed(-kInf), -1.0F);
  EXPECT_EQ(tanh_fixed(0.0F), 0.0F);
  EXPECT_TRUE(std::signbit(tanh_fixed(-0.0F)));
  EXPECT_TRUE(std::isnan(tanh_fixed(kNan)));
  EXPECT_EQ(gelu_fixed(kInf), kInf);
  EXPECT_EQ(gelu_fixed(0.0F), 0.0F);
  EXPECT_EQ(gelu_fixed(-1e30F), 0.0F);
  EXPECT_TRUE(std::isnan(gelu_fixed(kNan)));
}

}  // namespace
}  // namespace assay
