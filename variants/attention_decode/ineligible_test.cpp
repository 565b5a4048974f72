// Every reason for which a host variant of attention_decode steps back, by hand.
#include "gtest/gtest.h"

#include "kernels/attention_decode/op.h"

namespace assay {

extern const Variant<AttentionDecode> variant_AttentionDecode_avx2;
extern const Variant<AttentionDecode> variant_AttentionDecode_avx512;
extern const Variant<AttentionDecode> variant_AttentionDecode_split_kv;

namespace {

AttentionDecode::Shape shape(int head_dim) {
  AttentionDecode::Shape s;
  s.head_dim = head_dim;
  return s;
}

TEST(AttentionDecodeIneligible, Avx2NeedsTheInstructionsAndAHeadOfSixteens) {
  DeviceInfo d;
  EXPECT_STREQ(why_ineligible(variant_AttentionDecode_avx2, shape(64), d),
               "needs a CPU with AVX2, FMA and F16C");
  d.avx2 = true;
  EXPECT_EQ(why_ineligible(variant_AttentionDecode_avx2, shape(64), d), nullptr);
  EXPECT_STREQ(why_ineligible(variant_AttentionDecode_avx2, shape(18), d),
               "the head size is no multiple of 16");
}

TEST(AttentionDecodeIneligible, Avx512NeedsTheInstructionsAndAHeadOfSixteens) {
  DeviceInfo d;
  d.avx2 = true;
  EXPECT_STREQ(why_ineligible(variant_AttentionDecode_avx512, shape(64), d),
               "needs a CPU with AVX-512 (F, BW, DQ, VL)");
  d.avx512_vnni = true;
  EXPECT_EQ(why_ineligible(variant_AttentionDecode_avx512, shape(64), d), nullptr);
  EXPECT_STREQ(why_ineligible(variant_AttentionDecode_avx512, shape(18), d),
               "the head size is no multiple of 16");
}

TEST(AttentionDecodeIneligible, SplitKvKnowsFourHeadSizes) {
  DeviceInfo d;
  d.backend = Backend::kCuda;
  const auto why = [&](int head_dim) {
    return variant_AttentionDecode_split_kv.ineligible(shape(head_dim), d);
  };
  for (const int head_dim : {64, 128, 256, 512}) EXPECT_EQ(why(head_dim), nullptr);
  for (const int head_dim : {32, 96, 1024}) {
    EXPECT_STREQ(why(head_dim), "the head size is not 64, 128, 256 or 512");
  }
}

}  // namespace
}  // namespace assay
