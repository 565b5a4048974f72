#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/base/op_testing.h"
#include "kernels/doorbell_publish/op.h"

namespace assay {
namespace {

TEST(DoorbellPublish, StockStaysWithinTheBoundOfTheReferenceInEveryCase) {
  ASSERT_NO_FATAL_FAILURE(expect_stock_within_the_bound(find_op(DoorbellPublish::kName)));
}

// By hand: two tokens of three experts, expert 1 missing.
struct Bell {
  float logits[6] = {0.0F, 5.0F, 5.0F, /**/ 9.0F, 1.0F, 2.0F};
  float scale[3] = {1.0F, 1.0F, 1.0F};
  float x[4] = {1.0F, 2.0F, 3.0F, 4.0F};
  std::int32_t resident[3] = {1, 0, 1};
  std::int32_t ids[2] = {};
  float weights[2] = {};
  std::int32_t published = 6;
  std::int32_t ring_ids[4] = {-1, -1, -1, -1};
  float ring_weights[4] = {};
  float ring_x[8] = {};
  std::int32_t sequence = 6;
  void ring() {
    const DoorbellPublish::Shape s{2, 3, 1, 2, 2};
    const DoorbellPublish::Args a{logits,
                                  scale,
                                  x,
                                  resident,
                                  ids,
                                  weights,
                                  &published,
                                  ring_ids,
                                  ring_weights,
                                  ring_x,
                                  &sequence};
    variants<DoorbellPublish>()[0].variant->host.fn(s, a, {}, {});
  }
};

TEST(DoorbellPublish, AMissPublishesTheActivationsInTheNumbersSlot) {
  Bell bell;
  bell.ring();  // token 0 ties between 1 and 2: the lower id, which is missing
  EXPECT_EQ(bell.ids[0], 1);
  EXPECT_EQ(bell.ids[1], 0);
  EXPECT_EQ(bell.sequence, 7);
  EXPECT_EQ(bell.published, 7);
  EXPECT_EQ(bell.ring_ids[2], 1);  // slot 7 mod 2
  EXPECT_EQ(bell.ring_ids[3], 0);
  EXPECT_EQ(bell.ring_ids[0], -1);
  EXPECT_EQ(bell.ring_x[4], 1.0F);
  EXPECT_EQ(bell.ring_x[7], 4.0F);
  EXPECT_EQ(bell.ring_x[0], 0.0F);
}

TEST(DoorbellPublish, AllHitsPublishIdsButNoActivations) {
  Bell bell;
  bell.resident[1] = 1;
  bell.ring();
  EXPECT_EQ(bell.sequence, 7);
  EXPECT_EQ(bell.ring_ids[2], 1);
  EXPECT_EQ(bell.ring_weights[2], 1.0F);
  for (const float v : bell.ring_x) EXPECT_EQ(v, 0.0F);
}

Why refused(int tokens, int top_k, int hidden) {
  for (const auto& [name, variant] : variants<DoorbellPublish>()) {
    if (std::string(name) == "threads256")
      return variant->ineligible(DoorbellPublish::Shape{tokens, 128, top_k, hidden}, DeviceInfo{});
  }
  return "no such variant";
}

TEST(DoorbellPublish, TheSmallBlockEndsAt20480ActivationsAnd80Ids) {
  const char* const why = "more than 20,480 activations or 80 ids";
  EXPECT_EQ(refused(8, 10, 2560), nullptr);
  EXPECT_STREQ(refused(1, 1, 20481), why);
  EXPECT_EQ(refused(1, 1, 20480), nullptr);
  EXPECT_STREQ(refused(3, 27, 8), why);  // 81 ids
  EXPECT_EQ(refused(5, 16, 8), nullptr);
}

}  // namespace
}  // namespace assay
