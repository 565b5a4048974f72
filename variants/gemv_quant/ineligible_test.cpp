#include "gtest/gtest.h"

#include "kernels/base/registry.h"
#include "kernels/gemv_quant/op.h"

namespace assay {
namespace {

Why reason(const char* name, Numerics lane, bool avx2, bool avx512_vnni) {
  DeviceInfo device;
  device.avx2 = avx2;
  device.avx512_vnni = avx512_vnni;
  for (const auto& [variant_name, variant] : variants<GemvQuant>()) {
    if (std::string(variant_name) == name)
      return why_ineligible(*variant, GemvQuant::Shape{.numerics = lane}, device);
  }
  return "no such variant";
}

TEST(GemvQuantAvx2, TakesBothLanesAndNamesTheMissingCpu) {
  EXPECT_EQ(reason("avx2", Numerics::kExact, true, false), nullptr);
  EXPECT_EQ(reason("avx2", Numerics::kFast, true, false), nullptr);
  EXPECT_STREQ(reason("avx2", Numerics::kFast, false, false),
               "needs a CPU with AVX2, FMA and F16C");
}

TEST(GemvQuantAvx512Vnni, RefusesTheExactLaneOnAnyCpuAndNamesTheMissingCpu) {
  EXPECT_EQ(reason("avx512_vnni", Numerics::kFast, true, true), nullptr);
  EXPECT_STREQ(reason("avx512_vnni", Numerics::kExact, true, true),
               "multiplies int8 activations: the exact lane has none");
  EXPECT_STREQ(reason("avx512_vnni", Numerics::kExact, false, false),
               "multiplies int8 activations: the exact lane has none");
  EXPECT_STREQ(reason("avx512_vnni", Numerics::kFast, true, false),
               "needs a CPU with AVX-512 (F, BW, DQ, VL) and VNNI");
}

TEST(GemvQuantStock, TakesEveryShapeOnEveryCpu) {
  EXPECT_EQ(reason("stock", Numerics::kExact, false, false), nullptr);
  EXPECT_EQ(reason("stock", Numerics::kFast, false, false), nullptr);
}

// A device variant's own rule, whatever this build has.
Why device_reason(const char* name, const GemvQuant::Shape& shape, int cc) {
  DeviceInfo device;
  device.backend = Backend::kCuda;
  device.cc = cc;
  for (const auto& [variant_name, variant] : variants<GemvQuant>()) {
    if (std::string(variant_name) == name) return variant->ineligible(shape, device);
  }
  return "no such variant";
}

TEST(GemvQuantDp4a, NeedsTheFastLane) {
  GemvQuant::Shape s{.type = BlockType::kQ6_K, .numerics = Numerics::kFast};
  EXPECT_EQ(device_reason("dp4a", s, 75), nullptr);
  s.type = BlockType::kF32;  // the router's
  EXPECT_EQ(device_reason("dp4a", s, 75), nullptr);
  s.numerics = Numerics::kExact;
  EXPECT_STREQ(device_reason("dp4a", s, 75),
               "multiplies int8 activations: the exact lane has none");
}

}  // namespace
}  // namespace assay
