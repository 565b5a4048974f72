#include "kernels/base/dispatch.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "kernels/base/op_info.h"

namespace assay {
namespace dispatch_test {

// y = 2 x + state, state += 1.
struct Twice {
  static constexpr const char* kName = "twice";
  static constexpr const char* kSwitch = "ASSAY_TWICE";
  static constexpr const char* kSummary = "an op for the tests of dispatch";
  static constexpr OpKind kKind = OpKind::kKernel;
  struct Shape {
    int n = 4;
  };
  struct Args {
    const float* x = nullptr;
    float* state = nullptr;
    float* y = nullptr;
  };
  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    v("x", a.x, static_cast<std::size_t>(s.n), Dir::kIn);
    v("state", a.state, static_cast<std::size_t>(s.n), Dir::kInOut);
    v("y", a.y, static_cast<std::size_t>(s.n), Dir::kOut);
  }
  static std::size_t workspace_bytes(const Shape&) { return 16; }
};
using S = Twice::Shape;
using A = Twice::Args;

void honest(const S& s, const A& a, Workspace, Stream) {
  for (int i = 0; i < s.n; ++i) a.y[i] = 2.0F * a.x[i] + a.state[i];
  for (int i = 0; i < s.n; ++i) a.state[i] += 1.0F;
}
void off_by_one_ulp(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  a.y[1] = std::nextafter(a.y[1], 1e30F);
}
void garbage(const S& s, const A& a, Workspace w, Stream) {
  for (int i = 0; i < s.n; ++i) a.y[i] = a.state[i] = std::nanf("");
  const_cast<float*>(a.x)[0] = 1e30F;
  const_cast<volatile float*>(a.y)[s.n] = 7.0F;
  std::memset(w.data, 0x77, w.bytes);
}
void throws(const S&, const A& a, Workspace, Stream) {
  a.y[0] = 99.0F;
  throw std::runtime_error("gave up");
}
void changes_input(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  const_cast<float*>(a.x)[3] = -1.0F;
}
Why up_to_4(const S& s, const DeviceInfo&) { return s.n <= 4 ? nullptr : "more than 4 elements"; }

using V = Variant<Twice>;
const V kStockVariant{.stage = Stage::kStock, .host = {.fn = honest, .declared = true}};
const V kSame{.ineligible = up_to_4, .host = {.fn = honest, .declared = true}};
const V kUlp{.host = {.fn = off_by_one_ulp, .declared = true}};
const V kGarbage{.host = {.fn = garbage, .declared = true}};
const V kThrows{.host = {.fn = throws, .declared = true}};
const V kChangesInput{.host = {.fn = changes_input, .declared = true}};

}  // namespace dispatch_test

template <>
std::span<const VariantRow<dispatch_test::Twice>> variants() {
  using namespace dispatch_test;
  static const VariantRow<Twice> rows[] = {{"stock", &kStockVariant},
                                           {"same", &kSame},
                                           {"ulp", &kUlp},
                                           {"garbage", &kGarbage},
                                           {"throws", &kThrows},
                                           {"changes_input", &kChangesInput}};
  return rows;
}

namespace {

using dispatch_test::Twice;

// Buffers of one call with room behind them, and what stock alone leaves there.
struct Call {
  std::vector<float> x{1, 2, 3, 4, -7, -7};
  std::vector<float> state{0.5, 0.5, 0.5, 0.5, -8, -8};
  std::vector<float> y{9, 9, 9, 9, -9, -9};
  std::vector<std::byte> scratch = std::vector<std::byte>(16);
  void run(Dispatch<Twice>& dispatch, int n = 4) {
    dispatch({.n = n},
             {.x = x.data(), .state = state.data(), .y = y.data()},
             {scratch.data(), scratch.size()},
             {});
  }
  bool operator==(const Call& o) const { return x == o.x && state == o.state && y == o.y; }
};
Call served_by_stock() {
  Call c;
  Dispatch<Twice> stock({}, host_device(), false);
  c.run(stock);
  return c;
}

TEST(Dispatch, StockAloneGivesTheValuesOfTheContract) {
  const Call c = served_by_stock();
  EXPECT_EQ(c.y, (std::vector<float>{2.5, 4.5, 6.5, 8.5, -9, -9}));
  EXPECT_EQ(c.state, (std::vector<float>{1.5, 1.5, 1.5, 1.5, -8, -8}));
}

TEST(Dispatch, ABrokenVariantUnderParityNeverReachesTheOutput) {
  const Call want = served_by_stock();
  for (const char* name : {"ulp", "garbage", "throws", "changes_input"}) {
    Call c;
    Dispatch<Twice> d({.variant = name, .parity = true, .source = "switch"}, host_device(), false);
    c.run(d);
    EXPECT_TRUE(c == want) << name;
    EXPECT_EQ(d.report().stock, 1U) << name;
    EXPECT_EQ(d.report().selected, 0U) << name;
  }
}

TEST(Dispatch, ParityMeasuresTheDifference) {
  Call c;
  Dispatch<Twice> d({.variant = "ulp", .parity = true, .source = "switch"}, host_device(), false);
  c.run(d);
  EXPECT_EQ(d.report().compared, 1U);
  EXPECT_EQ(d.report().worst_ulp, 1U);
  EXPECT_EQ(d.report().mismatched_bytes, 1U);
  EXPECT_GT(d.report().worst_rel_l2, 0.0);
  EXPECT_EQ(d.report().broke_rules, 0U);
}

TEST(Dispatch, ParityOfAnHonestVariantFindsNothing) {
  Call c;
  Dispatch<Twice> d({.variant = "same", .parity = true, .source = "switch"}, host_device(), false);
  c.run(d);
  c.run(d);
  EXPECT_EQ(d.report().compared, 2U);
  EXPECT_EQ(d.report().worst_rel_l2, 0.0);
  EXPECT_EQ(d.report().mismatched_bytes, 0U);
  EXPECT_EQ(d.report().broke_rules, 0U);
}

TEST(Dispatch, ParityCountsThrowsStoresOutOfBoundsAndChangedInputs) {
  for (const char* name : {"garbage", "throws", "changes_input"}) {
    Call c;
    Dispatch<Twice> d({.variant = name, .parity = true, .source = "switch"}, host_device(), false);
    c.run(d);
    EXPECT_EQ(d.report().broke_rules, 1U) << name;
  }
  Call c;
  Dispatch<Twice> nan(
      {.variant = "garbage", .parity = true, .source = "switch"}, host_device(), false);
  c.run(nan);
  EXPECT_TRUE(std::isinf(nan.report().worst_rel_l2));
}

TEST(Dispatch, WithoutParityTheChosenVariantServes) {
  Call c;
  Dispatch<Twice> d({.variant = "ulp", .parity = false, .source = "switch"}, host_device(), false);
  c.run(d);
  EXPECT_EQ(c.y[1], std::nextafter(4.5F, 1e30F));
  EXPECT_EQ(d.report().selected, 1U);
  EXPECT_EQ(d.report().stock, 0U);
}

TEST(Dispatch, AnIneligibleShapeFallsBackToStockAndIsCountedByReason) {
  Call c;
  Dispatch<Twice> d({.variant = "same", .parity = false, .source = "switch"}, host_device(), false);
  c.run(d, 5);
  c.run(d, 6);
  c.run(d, 4);
  EXPECT_EQ(d.report().fallback.at("more than 4 elements"), 2U);
  EXPECT_EQ(d.report().stock, 2U);
  EXPECT_EQ(d.report().selected, 1U);
}

TEST(Dispatch, StrictMakesAnIneligibleShapeAnError) {
  Call c;
  Dispatch<Twice> d({.variant = "same", .parity = false, .source = "switch"}, host_device(), true);
  try {
    c.run(d, 5);
    FAIL() << "accepted";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("twice=same cannot run here: more than 4 elements"),
              std::string::npos);
  }
  EXPECT_EQ(c.y[0], 9.0F);
  c.run(d, 4);
  EXPECT_EQ(d.report().selected, 1U);
}

TEST(Dispatch, AVariantOfAnotherBackendIsIneligibleHere) {
  DeviceInfo card;
  card.backend = Backend::kCuda;
  EXPECT_STREQ(why_ineligible(dispatch_test::kSame, Twice::Shape{}, card),
               "has no CUDA implementation");
}

TEST(Choose, EveryOpResolvesToStockWithAnEmptyEnvironment) {
  const Env env = Env::from({});
  ASSERT_FALSE(all_ops().empty());
  for (const OpInfo* op : all_ops()) {
    const Choice c = choose(op->name, env, {});
    EXPECT_EQ(c.variant, "stock") << op->name;
    EXPECT_EQ(c.source, "stock") << op->name;
    EXPECT_FALSE(c.parity) << op->name;
    ASSERT_EQ(op->find("stock"), 0) << op->name;
    EXPECT_EQ(op->variants[0].stage, Stage::kStock) << op->name;
  }
}

TEST(Choose, ASwitchOverridesAProfileEvenWithStock) {
  const Profile profile = {{"gemv_quant", "avx2"}};
  EXPECT_EQ(choose("gemv_quant", Env::from({}), profile).variant, "avx2");
  EXPECT_EQ(choose("gemv_quant", Env::from({}), profile).source, "profile");
  EXPECT_EQ(choose("gemm_quant", Env::from({}), profile).variant, "stock");
  const Choice back = choose("gemv_quant", Env::from({{"ASSAY_GEMV_QUANT", "stock"}}), profile);
  EXPECT_EQ(back.variant, "stock");
  EXPECT_EQ(back.source, "switch");
  const Choice parity =
      choose("gemv_quant", Env::from({{"ASSAY_GEMV_QUANT", "parity:avx2"}}), profile);
  EXPECT_EQ(parity.variant, "avx2");
  EXPECT_TRUE(parity.parity);
}

}  // namespace
}  // namespace assay
