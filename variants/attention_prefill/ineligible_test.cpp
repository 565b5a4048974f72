// Every reason for which a host variant of attention_prefill steps back, by hand.
#include "gtest/gtest.h"

#include "kernels/attention_prefill/op.h"

namespace assay {

extern const Variant<AttentionPrefill> variant_AttentionPrefill_avx2;
extern const Variant<AttentionPrefill> variant_AttentionPrefill_avx512;

namespace {

AttentionPrefill::Shape shape(int head_dim) {
  AttentionPrefill::Shape s;
  s.head_dim = head_dim;
  return s;
}

TEST(AttentionPrefillIneligible, Avx2NeedsTheInstructionsAndAHeadOfSixteens) {
  DeviceInfo d;
  EXPECT_STREQ(why_ineligible(variant_AttentionPrefill_avx2, shape(64), d),
               "needs a CPU with AVX2, FMA and F16C");
  d.avx2 = true;
  EXPECT_EQ(why_ineligible(variant_AttentionPrefill_avx2, shape(64), d), nullptr);
  EXPECT_STREQ(why_ineligible(variant_AttentionPrefill_avx2, shape(18), d),
               "the head size is no multiple of 16");
}

TEST(AttentionPrefillIneligible, Avx512NeedsTheInstructionsAndAHeadOfSixteens) {
  DeviceInfo d;
  d.avx2 = true;
  EXPECT_STREQ(why_ineligible(variant_AttentionPrefill_avx512, shape(64), d),
               "needs a CPU with AVX-512 (F, BW, DQ, VL)");
  d.avx512_vnni = true;
  EXPECT_EQ(why_ineligible(variant_AttentionPrefill_avx512, shape(64), d), nullptr);
  EXPECT_STREQ(why_ineligible(variant_AttentionPrefill_avx512, shape(18), d),
               "the head size is no multiple of 16");
}

}  // namespace
}  // namespace assay
