#include "gtest/gtest.h"

#include "kernels/base/registry.h"
#include "kernels/experts_prefill/op.h"

namespace assay {
namespace {

Why reason(const char* name, Numerics lane, bool avx2, bool avx512_vnni) {
  DeviceInfo device;
  device.avx2 = avx2;
  device.avx512_vnni = avx512_vnni;
  for (const auto& [variant_name, variant] : variants<ExpertsPrefill>()) {
    if (std::string(variant_name) == name)
      return why_ineligible(*variant, ExpertsPrefill::Shape{.numerics = lane}, device);
  }
  return "no such variant";
}

TEST(ExpertsPrefillAvx2, TakesBothLanesAndNamesTheMissingCpu) {
  EXPECT_EQ(reason("avx2", Numerics::kExact, true, false), nullptr);
  EXPECT_EQ(reason("avx2", Numerics::kFast, true, false), nullptr);
  EXPECT_STREQ(reason("avx2", Numerics::kFast, false, false),
               "needs a CPU with AVX2, FMA and F16C");
}

TEST(ExpertsPrefillAvx512Vnni, RefusesTheExactLaneOnAnyCpuAndNamesTheMissingCpu) {
  EXPECT_EQ(reason("avx512_vnni", Numerics::kFast, true, true), nullptr);
  EXPECT_STREQ(reason("avx512_vnni", Numerics::kExact, true, true),
               "multiplies int8 activations: the exact lane has none");
  EXPECT_STREQ(reason("avx512_vnni", Numerics::kExact, false, false),
               "multiplies int8 activations: the exact lane has none");
  EXPECT_STREQ(reason("avx512_vnni", Numerics::kFast, true, false),
               "needs a CPU with AVX-512 (F, BW, DQ, VL) and VNNI");
}

TEST(ExpertsPrefillStock, TakesEveryShapeOnEveryCpu) {
  EXPECT_EQ(reason("stock", Numerics::kExact, false, false), nullptr);
  EXPECT_EQ(reason("stock", Numerics::kFast, false, false), nullptr);
}

// A device variant's own rule, whatever this build has.
Why device_reason(const char* name, const ExpertsPrefill::Shape& shape, int cc) {
  DeviceInfo device;
  device.backend = Backend::kCuda;
  device.cc = cc;
  for (const auto& [variant_name, variant] : variants<ExpertsPrefill>()) {
    if (std::string(variant_name) == name) return variant->ineligible(shape, device);
  }
  return "no such variant";
}

TEST(ExpertsPrefillGrouped, NeedsTheFastLaneTensorCoresWholeBlocksAndFewExperts) {
  ExpertsPrefill::Shape s{.hidden = 64, .width = 96, .numerics = Numerics::kFast};
  EXPECT_EQ(device_reason("grouped", s, 80), nullptr);
  EXPECT_STREQ(device_reason("grouped", s, 75), "needs compute capability 8.0 (mma.sync m16n8k16)");
  s.width = 20;
  EXPECT_STREQ(device_reason("grouped", s, 80), "hidden size or width is no multiple of 32");
  s.width = 32;
  s.experts = 1025;
  EXPECT_STREQ(device_reason("grouped", s, 80), "more than 1,024 experts");
  s.numerics = Numerics::kExact;
  EXPECT_STREQ(device_reason("grouped", s, 80),
               "halves its operands: the exact lane multiplies floats");
}

}  // namespace
}  // namespace assay
