// Every reason for which a host variant of attention_prefill steps back, by hand.
#include "gtest/gtest.h"

#include "kernels/attention_prefill/op.h"

namespace assay {

extern const Variant<AttentionPrefill> variant_AttentionPrefill_avx2;
extern const Variant<AttentionPrefill> variant_AttentionPrefill_avx512;
extern const Variant<AttentionPrefill> variant_AttentionPrefill_mma_tiles;
extern const Variant<AttentionPrefill> variant_AttentionPrefill_tiled;

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

TEST(AttentionPrefillIneligible, MmaTilesNeedTensorCoresHalfRowsAKnownHeadAndRoom) {
  DeviceInfo d;
  d.backend = Backend::kCuda;
  AttentionPrefill::Shape s = shape(256);
  s.kv = KvType::kF16;
  const auto why = [&] { return variant_AttentionPrefill_mma_tiles.ineligible(s, d); };
  d.cc = 75;
  EXPECT_STREQ(why(), "needs compute capability 8.0 (mma.sync m16n8k16)");
  d.cc = 86;
  d.shared_bytes_per_block = 99 * 1024;
  EXPECT_EQ(why(), nullptr);
  s.head_dim = 512;
  EXPECT_STREQ(why(), "the tiles do not fit the shared memory of a block");
  d.shared_bytes_per_block = 163 * 1024;
  EXPECT_EQ(why(), nullptr);
  s.head_dim = 96;
  EXPECT_STREQ(why(), "the head size is not 64, 128, 256 or 512");
  s.kv = KvType::kF32;
  EXPECT_STREQ(why(), "the keys and values are not in half");
}

TEST(AttentionPrefillIneligible, TiledNeedsHeadsOfSixtyFoursAndRoom) {
  DeviceInfo d;
  d.backend = Backend::kCuda;
  d.shared_bytes_per_block = 64 * 1024;
  const auto why = [&](int head_dim) {
    return variant_AttentionPrefill_tiled.ineligible(shape(head_dim), d);
  };
  EXPECT_EQ(why(256), nullptr);
  EXPECT_STREQ(why(512), "the tile does not fit the shared memory of a block");
  EXPECT_STREQ(why(96), "the head size is no multiple of 64 up to 512");
  EXPECT_STREQ(why(1024), "the head size is no multiple of 64 up to 512");
  d.shared_bytes_per_block = 227 * 1024;
  EXPECT_EQ(why(512), nullptr);
}

}  // namespace
}  // namespace assay
