#include "kernels/base/measure.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace assay {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr auto kFar = std::numeric_limits<std::uint64_t>::max();

Difference floats(std::vector<float> got, std::vector<float> want) {
  return measure_bytes(DType::kF32,
                       reinterpret_cast<const std::byte*>(got.data()),
                       reinterpret_cast<const std::byte*>(want.data()),
                       4 * got.size());
}
Difference halves(std::vector<std::uint16_t> got, std::vector<std::uint16_t> want) {
  return measure_bytes(DType::kF16,
                       reinterpret_cast<const std::byte*>(got.data()),
                       reinterpret_cast<const std::byte*>(want.data()),
                       2 * got.size());
}

TEST(UlpDistance, CountsRepresentableSteps) {
  EXPECT_EQ(ulp_distance(1.0F, 1.0F), 0U);
  EXPECT_EQ(ulp_distance(1.0F, std::nextafter(1.0F, 2.0F)), 1U);
  EXPECT_EQ(ulp_distance(0.0F, -0.0F), 0U);
  EXPECT_EQ(ulp_distance(std::numeric_limits<float>::denorm_min(),
                         -std::numeric_limits<float>::denorm_min()),
            2U);
  EXPECT_EQ(ulp_distance(std::numeric_limits<float>::max(), kInf), 1U);
  EXPECT_EQ(ulp_distance(1.0F, 2.0F), 1U << 23);
  EXPECT_EQ(ulp_distance(-1.0F, -2.0F), 1U << 23);
}

TEST(UlpDistance, NanIsFarFromEveryNumberAndFromAnotherNan) {
  EXPECT_EQ(ulp_distance(kNan, 1.0F), kFar);
  EXPECT_EQ(ulp_distance(1.0F, kNan), kFar);
  EXPECT_EQ(ulp_distance(kNan, kNan), 0U);
  EXPECT_EQ(ulp_distance(kNan, -kNan), kFar);
}

TEST(MeasureBytes, KnowsHalves) {
  EXPECT_EQ(halves({0x3C00}, {0x3C01}).max_ulp, 1U);         // 1.0 and the next
  EXPECT_EQ(halves({0x8001}, {0x0001}).max_ulp, 2U);         // around zero
  EXPECT_EQ(halves({0x7E00}, {0x3C00}).max_ulp, kFar);       // NaN
  EXPECT_DOUBLE_EQ(halves({0x3C00}, {0x4000}).rel_l2, 0.5);  // 1 against 2
}

TEST(MeasureBytes, RelativeL2ByHand) {
  // differences 0, 3; norm 5
  EXPECT_DOUBLE_EQ(floats({3, 7}, {3, 4}).rel_l2, 0.6);
  EXPECT_EQ(floats({3, 7}, {3, 4}).worst_index, 1U);
  EXPECT_EQ(floats({0, 0}, {0, 0}).rel_l2, 0.0);
  EXPECT_TRUE(std::isinf(floats({1, 0}, {0, 0}).rel_l2));
}

TEST(MeasureBytes, NonFinitePositionsMustAgree) {
  EXPECT_EQ(floats({kNan, 1}, {kNan, 1}).rel_l2, 0.0);
  EXPECT_EQ(floats({kInf, 1}, {kInf, 1}).rel_l2, 0.0);
  EXPECT_TRUE(std::isinf(floats({kNan, 1}, {1, 1}).rel_l2));
  EXPECT_TRUE(std::isinf(floats({1, 1}, {kNan, 1}).rel_l2));
  EXPECT_TRUE(std::isinf(floats({kInf, 1}, {-kInf, 1}).rel_l2));
  EXPECT_EQ(floats({kInf, 2}, {kInf, 1}).worst_index, 1U);
}

TEST(MeasureBytes, CountsBytesNotValues) {
  EXPECT_EQ(floats({0.0F}, {-0.0F}).mismatched_bytes, 1U);
  EXPECT_EQ(floats({1.0F, 2.0F}, {1.0F, 2.0F}).mismatched_bytes, 0U);
  EXPECT_EQ(floats({1.0F, 2.0F}, {1.0F, 2.0F}).compared, 2U);
}

TEST(Worse, NanIsWorstOfAll) {
  EXPECT_EQ(worse(1.0, 2.0), 2.0);
  EXPECT_TRUE(std::isinf(worse(std::nan(""), 2.0)));
  EXPECT_TRUE(std::isinf(worse(2.0, std::nan(""))));
}

TEST(ElementText, ShowsValueAndBits) {
  const float v = 0.1F;
  EXPECT_EQ(element_text(DType::kF32, reinterpret_cast<const std::byte*>(&v), 0),
            "0.100000001 (0x3dcccccd)");
  const std::int8_t q = -1;
  EXPECT_EQ(element_text(DType::kI8, reinterpret_cast<const std::byte*>(&q), 0), "-1 (0xff)");
}

}  // namespace
}  // namespace assay
