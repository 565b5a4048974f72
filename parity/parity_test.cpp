// The judge's own tests: an op that exists only here, with variants broken on purpose. Each must be caught through
// run_parity, the path that parity_<op> takes; the honest ones must pass it.
#include "parity/parity.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/base/host_pool.h"
#include "kernels/base/json_schema.h"
#include "kernels/base/op_impl.h"
#include "kernels/base/record.h"
#include "parity/compare.h"
#include "parity/parity_record.h"

namespace assay {
namespace planted {

// y[t][c] = 2 x[t][c] + w[c] and sign[t] = -1, 0 or 1 of x[t][0]; w is a row of F32.
struct Planted {
  static constexpr const char* kName = "planted";
  static constexpr const char* kSwitch = "ASSAY_PLANTED";
  static constexpr const char* kSummary = "an op for the tests of parity";
  static constexpr OpKind kKind = OpKind::kKernel;
  static constexpr bool kTokenRows = true;

  struct Shape {
    int tokens = 1;
    int cols = 8;
    Numerics numerics = Numerics::kExact;
    std::string describe() const {
      return "tokens=" + std::to_string(tokens) + " cols=" + std::to_string(cols) +
             " numerics=" + to_string(numerics);
    }
  };
  struct Args {
    QuantView w;
    const float* x = nullptr;
    float* y = nullptr;
    std::int32_t* sign = nullptr;
  };
  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    const auto n = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.cols);
    v.quant("w", a.w, BlockType::kF32, 1, s.cols);
    v("x", a.x, n, Dir::kIn);
    v("y", a.y, n, Dir::kOut);
    v("sign", a.sign, static_cast<std::size_t>(s.tokens), Dir::kOut);
  }
  static std::size_t workspace_bytes(const Shape& s) {
    return 4 * static_cast<std::size_t>(s.cols);
  }
  static double bytes_moved(const Shape& s) { return 8.0 * s.tokens * s.cols; }
  static double flops(const Shape& s) { return 2.0 * s.tokens * s.cols; }
  static double error_bound(const Shape& s) { return s.numerics == Numerics::kExact ? 1e-4 : 1e-6; }

  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
    double nan_share = 0.0;
  };
  static std::vector<Case> cases() {
    return {
        {.name = "plain", .shape = {.tokens = 4}},
        {.name = "one_token", .shape = {.tokens = 1}},
        {.name = "fast", .shape = {.tokens = 3, .cols = 16, .numerics = Numerics::kFast}},
        {.name = "some_nan", .shape = {.tokens = 4}, .nan_share = 0.2},
        {.name = "mostly_nan", .shape = {.tokens = 4}, .mostly_nonfinite = true, .nan_share = 0.9}};
  }
  // Cases that must fail whatever the variant does; selected by the tests only.
  static std::vector<Case> bad_cases() {
    return {{.name = "undeclared_nan", .shape = {.tokens = 4}, .nan_share = 0.9},
            {.name = "empty", .shape = {.tokens = 0}}};
  }
  static void fill(const Case& c, const Filler& f) {
    Rng rng(f.seed());
    const auto w = f.get<std::byte>("w");
    for (std::size_t i = 0; i < w.size() / 4; ++i) {
      const auto v = static_cast<float>(rng.normal());
      std::memcpy(w.data() + 4 * i, &v, 4);
    }
    for (auto& v : f.get<float>("x")) {
      v = static_cast<float>(
          -1.0 - std::fabs(rng.normal()));  // negative: sign is -1, the first poison's own value
      if (rng.uniform() < c.nan_share) v = std::numeric_limits<float>::quiet_NaN();
    }
  }
  static std::vector<std::vector<double>> reference(const Shape& s, const Args& a) {
    std::vector<double> y;
    std::vector<double> sign;
    for (int t = 0; t < s.tokens; ++t) {
      for (int c = 0; c < s.cols; ++c) y.push_back(2.0 * a.x[t * s.cols + c] + weight(a, c));
      const float first = a.x[t * s.cols];
      sign.push_back(first < 0 ? -1 : first > 0 ? 1 : 0);
    }
    return {y, sign};
  }
  static float weight(const Args& a, int c) {
    float v = 0.0F;
    std::memcpy(&v, a.w.data + 4 * c, 4);
    return a.w.layout != nullptr ? -v : v;  // the layout of these tests stores -w
  }
};

using S = Planted::Shape;
using A = Planted::Args;

void honest(const S& s, const A& a, Workspace, Stream) {
  for (int t = 0; t < s.tokens; ++t) {
    for (int c = 0; c < s.cols; ++c)
      a.y[t * s.cols + c] = 2.0F * a.x[t * s.cols + c] + Planted::weight(a, c);
    const float first = a.x[t * s.cols];
    a.sign[t] = first < 0 ? -1 : first > 0 ? 1 : 0;
  }
}
int last(const S& s) { return s.tokens * s.cols - 1; }

void one_ulp(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  a.y[last(s)] = std::nextafter(a.y[last(s)], 1e30F);
}
void writes_nan(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  a.y[1] = std::numeric_limits<float>::quiet_NaN();
}
void hides_nan(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  for (int i = 0; i <= last(s); ++i) a.y[i] = std::isnan(a.y[i]) ? 0.0F : a.y[i];
}
void misses_store(const S& s, const A& a, Workspace w, Stream q) {
  const float before = a.y[last(s)];
  honest(s, a, w, q);
  std::memcpy(&a.y[last(s)], &before, 4);
}
void misses_sign(const S& s, const A& a, Workspace w, Stream q) {
  const std::int32_t before = a.sign[0];
  honest(s, a, w, q);
  a.sign[0] = before;
}
void writes_behind(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  const_cast<volatile float*>(a.y)[last(s) + 1] = 1.0F;
}
void writes_before(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  const_cast<volatile std::int32_t*>(a.sign)[-1] = 1;
}
void overruns_workspace(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  const_cast<volatile std::byte*>(w.data)[w.bytes] = std::byte{1};
}
void trusts_workspace(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  float v = 0.0F;
  std::memcpy(&v, w.data, 4);
  a.y[0] += v;  // undefined scratch
}
void swaps_rows(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  for (int c = 0; c < s.cols && s.tokens > 1; ++c) std::swap(a.y[c], a.y[s.cols + c]);
}
void writes_zeros(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  std::memset(a.y, 0, 4 * static_cast<std::size_t>(last(s) + 1));
}
void changes_input(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  const_cast<float*>(a.x)[2] += 1.0F;
}
void wrong_sign(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  a.sign[s.tokens - 1] = 1;
}
void sloppy(const S& s,
            const A& a,
            Workspace w,
            Stream q) {  // below error_bound, far above 2x stock's error
  honest(s, a, w, q);
  for (int i = 0; i <= last(s); ++i) a.y[i] *= 1.00001F;
}
void throws(const S&, const A&, Workspace, Stream) { throw std::runtime_error("no such thing"); }
void depends_on_threads(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  if (q.pool != nullptr && q.pool->threads() == 4) a.y[0] = std::nextafter(a.y[0], 1e30F);
}
void depends_on_batch(const S& s, const A& a, Workspace w, Stream q) {
  honest(s, a, w, q);
  if (s.tokens > 1) a.y[last(s)] = std::nextafter(a.y[last(s)], 1e30F);
}
void depends_on_call(const S& s, const A& a, Workspace w, Stream q) {
  static std::atomic<int> calls{0};
  honest(s, a, w, q);
  if (++calls % 2 == 0) a.y[0] = std::nextafter(a.y[0], 1e30F);
}

bool any_view(const QuantView&) { return true; }
std::size_t same_size(const QuantView& v) { return v.bytes(); }
void negate(const QuantView& v, std::byte* out) {
  for (std::size_t i = 0; i < v.bytes(); ++i)
    out[i] = v.data[i] ^ (i % 4 == 3 ? std::byte{0x80} : std::byte{0});
}
void negate_back(const QuantView& v, const std::byte* prepared, std::byte* out) {
  for (std::size_t i = 0; i < v.bytes(); ++i)
    out[i] = prepared[i] ^ (i % 4 == 3 ? std::byte{0x80} : std::byte{0});
}
void forget_to_negate(const QuantView& v, const std::byte* prepared, std::byte* out) {
  std::memcpy(out, prepared, v.bytes());
}
void read_negated_row(const QuantView& v, int r, std::byte* out) {
  QuantView one = v;
  one.rows = 1;
  negate_back(one, v.row(r), out);
}
void read_raw_row(const QuantView& v, int r, std::byte* out) {
  std::memcpy(out, v.row(r), v.row_bytes);
}
const Layout kNegated{"negated", any_view, same_size, negate, negate_back, read_negated_row};
const Layout kNoWayBack{"no_way_back", any_view, same_size, negate, forget_to_negate, nullptr};
const Layout kBadReader{"bad_reader", any_view, same_size, negate, negate_back, read_raw_row};

Why needs_vnni(const S&, const DeviceInfo& d) {
  return d.avx512_vnni ? nullptr : "needs AVX-512 VNNI";
}
Why not_plain(const S& s, const DeviceInfo&) {
  return s.tokens == 4 ? "not for 4 tokens" : nullptr;
}
Why never(const S&, const DeviceInfo&) { return "never eligible"; }

constexpr auto kBit = Exactness::kBitwise;
constexpr auto kBound = Exactness::kBounded;
constexpr auto kPick = Exactness::kSelection;
using V = Variant<Planted>;
V make(void (*f)(const S&, const A&, Workspace, Stream),
       Exactness e,
       bool deterministic = true,
       bool invariant = true) {
  V v;
  v.exactness = e;
  v.deterministic = deterministic;
  v.batch_invariant = invariant;
  v.host = {f, true};
  return v;
}
V with(V v,
       Why (*ineligible)(const S&, const DeviceInfo&),
       const Layout* layout = nullptr,
       const char* to = "stock") {
  v.ineligible = ineligible;
  v.layout = layout;
  v.bitwise_to = to;
  return v;
}

struct Named {
  const char* name;
  V variant;
};
const Named kNamed[] = {
    {"stock",
     [] {
       V v = make(honest, kBound);
       v.stage = Stage::kStock;
       return v;
     }()},
    {"honest", make(honest, kBit)},
    {"honest_bounded", make(honest, kBound)},
    {"honest_selection", make(honest, kPick)},
    {"honest_layout", with(make(honest, kBit), nullptr, &kNegated)},
    {"one_ulp", make(one_ulp, kBit)},
    {"one_ulp_bounded", make(one_ulp, kBound, true, false)},
    {"writes_nan", make(writes_nan, kBound)},
    {"hides_nan", make(hides_nan, kBound)},
    {"misses_store", make(misses_store, kBound)},
    {"misses_sign", make(misses_sign, kBit, false, false)},
    {"writes_behind", make(writes_behind, kBit)},
    {"writes_before", make(writes_before, kBit)},
    {"overruns_workspace", make(overruns_workspace, kBit)},
    {"trusts_workspace", make(trusts_workspace, kBound)},
    {"swaps_rows", make(swaps_rows, kBound)},
    {"writes_zeros", make(writes_zeros, kBound)},
    {"changes_input", make(changes_input, kBit)},
    {"wrong_sign", make(wrong_sign, kPick)},
    {"sloppy", make(sloppy, kBound)},
    {"throws", make(throws, kBound)},
    {"depends_on_threads", make(depends_on_threads, kBound)},
    {"depends_on_threads_openly", make(depends_on_threads, kBound, true, false)},
    {"depends_on_batch", make(depends_on_batch, kBound)},
    {"depends_on_call", make(depends_on_call, kBound)},
    {"depends_on_call_openly", make(depends_on_call, kBound, false, false)},
    {"no_way_back", with(make(honest, kBit), nullptr, &kNoWayBack)},
    {"bad_reader", with(make(honest, kBit), nullptr, &kBadReader)},
    {"needs_vnni", with(make(honest, kBit), needs_vnni)},
    {"not_plain", with(make(honest, kBit), not_plain)},
    {"never", with(make(honest, kBit), never)},
    {"to_never", with(make(honest, kBit), nullptr, nullptr, "never")},
    {"to_sloppy", with(make(sloppy, kBit), nullptr, nullptr, "sloppy")},
    {"to_zeros", with(make(writes_zeros, kBit), nullptr, nullptr, "writes_zeros")},
    {"to_throws", with(make(honest, kBit), nullptr, nullptr, "throws")},
    {"to_nowhere", with(make(honest, kBit), nullptr, nullptr, "no_such_variant")},
};

}  // namespace planted

template <>
std::span<const VariantRow<planted::Planted>> variants() {
  static const auto rows = [] {
    std::vector<VariantRow<planted::Planted>> all;
    for (const auto& n : planted::kNamed) all.push_back({n.name, &n.variant});
    return all;
  }();
  return rows;
}

namespace {

using planted::Planted;

const OpInfo& planted_op() {
  static const OpInfo op = make_op_info<Planted>("planted");
  return op;
}
// The same op with the cases that no variant may pass.
const OpInfo& bad_case_op() {
  static const OpInfo op = [] {
    OpInfo o = make_op_info<Planted>("planted");
    o.case_names.clear();
    for (const auto& c : Planted::bad_cases()) o.case_names.push_back(c.name);
    o.make_problem = [](std::size_t i, std::uint64_t seed) -> std::unique_ptr<Problem> {
      return std::make_unique<op_impl_detail::ProblemOf<Planted>>(Planted::bad_cases().at(i), seed);
    };
    return o;
  }();
  return op;
}

ParityOptions options_for(const std::string& variant, const std::string& filter = "^plain$") {
  ParityOptions o;
  o.device = host_device();
  o.variant = variant;
  o.filter = filter;
  return o;
}
VariantResult judge(const std::string& variant, const std::string& filter = "^plain$") {
  return run_parity(planted_op(), options_for(variant, filter)).variants.at(0);
}
// Every fault of the variant on the case, joined; "passed" or "skipped: .." without one.
std::string verdict(const std::string& variant, const std::string& filter = "^plain$") {
  const auto result = judge(variant, filter);
  std::string text;
  for (const auto& c : result.cases) {
    for (const auto& f : c.faults) text += f + "\n";
    if (c.outcome == CaseOutcome::kSkip) text += "skipped: " + c.skip_reason + "\n";
  }
  return text.empty() ? "passed" : text;
}
testing::AssertionResult caught(const std::string& variant,
                                const std::string& why,
                                const std::string& filter = "^plain$") {
  const std::string text = verdict(variant, filter);
  if (text.find(why) == std::string::npos)
    return testing::AssertionFailure() << variant << " gave: " << text;
  if (judge(variant, filter).verdict() != Exit::kCheckFailed)
    return testing::AssertionFailure() << variant << " did not fail";
  return testing::AssertionSuccess();
}

TEST(Parity, HonestVariantsPassInEveryClassOnEveryCase) {
  for (const char* name :
       {"stock", "honest", "honest_bounded", "honest_selection", "honest_layout"}) {
    const auto result = judge(name, "");
    EXPECT_EQ(result.verdict(), Exit::kGood) << verdict(name, "");
    EXPECT_EQ(result.count(CaseOutcome::kPass), Planted::cases().size());
    EXPECT_EQ(result.cases[0].bytes, 4U * 8U * 4U + 4U * 4U);
    EXPECT_EQ(result.cases[0].mismatched_bytes, 0U);
  }
}

TEST(Parity, CatchesOneUlpInABitwiseVariant) {
  EXPECT_TRUE(caught("one_ulp", "not bitwise equal: y[31] (row 3 of 4, column 7): got "));
  const auto c = judge("one_ulp").cases.at(0);
  EXPECT_EQ(c.max_ulp, 1U);
  EXPECT_GE(c.mismatched_bytes, 1U);
  EXPECT_EQ(verdict("one_ulp_bounded", "^fast$"), "passed");
}

TEST(Parity, CatchesNanWhereTheReferenceIsFinite) {
  EXPECT_TRUE(caught("writes_nan", "y[1] (row 0 of 4, column 1): got nan"));
}

TEST(Parity, CatchesAFiniteValueWhereTheReferenceIsNan) {
  EXPECT_TRUE(caught("hides_nan", "finite on one side only", "^some_nan$"));
}

TEST(Parity, CatchesAMissingStore) { EXPECT_TRUE(caught("misses_store", "y[31]")); }

// The missing value equals the first poison byte for byte, so that only the second run on another poison tells.
TEST(Parity, CatchesAMissingStoreThatThePoisonHides) {
  EXPECT_TRUE(caught("misses_sign", "sign[0] (row 0 of 4, column 0) was never written"));
}

TEST(Parity, CatchesStoresOutOfBounds) {
  EXPECT_TRUE(caught("writes_behind", "guard of y at byte 128"));
  EXPECT_TRUE(caught("writes_before", "guard of sign at byte -4"));
  EXPECT_TRUE(caught("overruns_workspace", "guard of workspace at byte 32"));
}

TEST(Parity, CatchesTrustInUndefinedScratch) { EXPECT_TRUE(caught("trusts_workspace", "y[0]")); }

TEST(Parity, CatchesSwappedRows) { EXPECT_TRUE(caught("swaps_rows", "above the bound")); }

TEST(Parity, CatchesAllZeros) {
  EXPECT_TRUE(caught("writes_zeros", "relative L2 1 is above the bound"));
}

TEST(Parity, CatchesAChangedInputAndJudgesTheNextVariantOnFreshOnes) {
  EXPECT_TRUE(caught("changes_input", "changed its input x at byte 8"));
  const auto all = run_parity(planted_op(), options_for("", "^plain$"));
  for (const auto& v : all.variants) {
    if (v.info.name == "sloppy") {  // declared after it, and still judged by its own error
      EXPECT_LE(v.cases.at(0).rel_l2, Planted::error_bound({}));
    }
  }
  EXPECT_EQ(all.verdict(), Exit::kCheckFailed);
}

TEST(Parity, CatchesAWrongSelection) {
  EXPECT_TRUE(caught("wrong_sign", "discrete values differ"));
}

TEST(Parity, HoldsExactArithmeticToTwiceStocksOwnError) {
  EXPECT_TRUE(caught("sloppy", "above the bound 1.19209"));
  EXPECT_LE(judge("sloppy").cases.at(0).rel_l2, Planted::error_bound({}));
}

TEST(Parity, ReportsAnExceptionAsAFault) { EXPECT_TRUE(caught("throws", "threw: no such thing")); }

TEST(Parity, ChecksTheDeclaredFlags) {
  EXPECT_TRUE(caught("depends_on_threads", "bits depend on the thread count (4)", "^fast$"));
  EXPECT_TRUE(caught("depends_on_batch", "not batch-invariant: row 2 alone", "^fast$"));
  EXPECT_TRUE(caught("depends_on_call", "bits", "^fast$"));
  EXPECT_EQ(verdict("depends_on_threads_openly", "^fast$"), "passed");
  EXPECT_EQ(verdict("depends_on_call_openly", "^fast$"), "passed");
}

TEST(Parity, ChecksLayoutsBothWays) {
  EXPECT_TRUE(caught("no_way_back", "unprepare does not give the file's bytes back"));
  EXPECT_TRUE(caught("bad_reader", "read_row differs from the file at row 0"));
}

TEST(Parity, ABitwiseCounterpartOtherThanStockAddsTheBound) {
  EXPECT_TRUE(caught("to_sloppy", "above the bound"));
  EXPECT_TRUE(caught("to_zeros", "above the bound"));
  EXPECT_TRUE(caught("to_throws", "its counterpart is at fault: throws threw"));
  EXPECT_TRUE(caught("to_nowhere", "no counterpart: bitwise_to names no variant: no_such_variant"));
  EXPECT_TRUE(caught("to_never", "no counterpart: never: never eligible"));
}

TEST(Parity, IneligibleIsASkipWithItsReasonAndNeverAPass) {
  EXPECT_TRUE(caught("never", "skipped: never eligible", ""));
  const auto some = judge("not_plain", "");
  EXPECT_EQ(some.verdict(), Exit::kGood);
  EXPECT_EQ(some.count(CaseOutcome::kSkip), 3U);
  EXPECT_EQ(some.count(CaseOutcome::kPass), 2U);
  EXPECT_EQ(judge("not_plain").verdict(), Exit::kCheckFailed);
}

TEST(Parity, LackOfHardwareIsItsOwnVerdict) {
  auto o = options_for("needs_vnni", "");
  o.device.avx512_vnni = false;
  EXPECT_EQ(run_parity(planted_op(), o).verdict(), Exit::kNoHardware);
  o.device.avx512_vnni = true;
  EXPECT_EQ(run_parity(planted_op(), o).verdict(), Exit::kGood);
}

TEST(Parity, ZeroComparedCasesIsAFailure) {
  const auto nothing = run_parity(planted_op(), options_for("honest", "no such case"));
  EXPECT_TRUE(nothing.variants.at(0).cases.empty());
  EXPECT_EQ(nothing.verdict(), Exit::kCheckFailed);
}

TEST(Parity, ACaseThatComparesNothingFails) {
  auto o = options_for("honest", "^empty$");
  const auto r = run_parity(bad_case_op(), o);
  ASSERT_EQ(r.verdict(), Exit::kCheckFailed);
  EXPECT_NE(r.variants[0].cases[0].faults.at(0).find("compares nothing"), std::string::npos);
}

TEST(Parity, MostlyNonFiniteCasesMustSaySo) {
  const auto r = run_parity(bad_case_op(), options_for("honest", "^undeclared_nan$"));
  ASSERT_EQ(r.verdict(), Exit::kCheckFailed);
  EXPECT_NE(r.variants[0].cases[0].faults.at(0).find("mostly non-finite"), std::string::npos);
  EXPECT_EQ(verdict("honest", "^mostly_nan$"), "passed");
}

TEST(Parity, AFaultNamesCaseSeedAndTheCommandThatRepeatsIt) {
  auto o = options_for("one_ulp");
  o.rng_seed = 7;
  const auto r = run_parity(planted_op(), o);
  const std::string fault = r.variants[0].cases[0].faults.at(0);
  EXPECT_NE(fault.find("planted one_ulp case plain (tokens=4 cols=8 numerics=exact)"),
            std::string::npos)
      << fault;
  EXPECT_NE(fault.find("(0x"), std::string::npos) << fault;
  EXPECT_NE(fault.find("seed 7; repeat with: parity_planted --variant one_ulp --filter '^plain$' "
                       "--rng-seed 7 --threads 1"),
            std::string::npos)
      << fault;
}

TEST(Parity, TheSeedChangesTheInputs) {
  const auto a = planted_op().make_problem(0, 1);
  const auto b = planted_op().make_problem(0, 2);
  EXPECT_NE(a->reference(), b->reference());
}

TEST(Parity, RefusesWhatItCannotSelect) {
  EXPECT_THROW(run_parity(planted_op(), options_for("nobody")), UserError);
  EXPECT_THROW(run_parity(planted_op(), options_for("honest", "(")), UserError);
  auto bare = planted_op();
  bare.make_problem = nullptr;
  EXPECT_THROW(run_parity(bare, options_for("honest")), UserError);
}

TEST(ParityRecord, FitsItsSchemaAndAddsUp) {
  for (const char* variant : {"honest", "not_plain", "one_ulp", "writes_nan", "sloppy"}) {
    const auto o = options_for(variant, "");
    auto record = parity_record(planted_op(), o, run_parity(planted_op(), o).variants.at(0));
    record["source"]["digest"] =
        std::string(64, '0');  // the op of this test is no file of the tree
    seal_record(record);
    EXPECT_TRUE(schema_faults(*schema_named("assay-parity"), record).empty())
        << schema_faults(*schema_named("assay-parity"), record).front();
    EXPECT_TRUE(parity_record_faults(record).empty())
        << variant << ": " << parity_record_faults(record).front();
    EXPECT_EQ(record.at("outcome"), judge(variant, "").verdict() == Exit::kGood ? "pass" : "fail");
  }
}

TEST(ParityRecord, ATamperedRecordDoesNotAddUp) {
  const auto o = options_for("one_ulp", "");
  const auto record = parity_record(planted_op(), o, run_parity(planted_op(), o).variants.at(0));
  const auto tampered = [&](const char* pointer, const nlohmann::json& value) {
    auto r = record;
    r.at(nlohmann::json::json_pointer(pointer)) = value;
    return !parity_record_faults(r).empty();
  };
  EXPECT_TRUE(tampered("/outcome", "pass"));
  EXPECT_TRUE(tampered("/cases/0/pass", true));
  EXPECT_TRUE(tampered("/totals/failed", 0));
  EXPECT_TRUE(tampered("/totals/compared", 9));
  EXPECT_TRUE(tampered("/worst/max_ulp", 0));
  EXPECT_TRUE(tampered("/worst/rel_l2", 1.0));
  EXPECT_TRUE(tampered("/bitwise_to", nullptr));
}

Output floats(std::vector<float> v) {
  Output o{"y", DType::kF32, v.size(), {}};
  o.bytes.resize(4 * v.size());
  std::memcpy(o.bytes.data(), v.data(), o.bytes.size());
  return o;
}

TEST(Comparator, NanNeverPassesABound) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto fault = [](float got, double want) {
    return compare_reference({floats({got, 1})}, {{want, 1}}, {0.5}, 0).fault;
  };
  EXPECT_NE(fault(nan, 1.0), "");
  EXPECT_NE(fault(1.0F, nan), "");
  EXPECT_NE(fault(inf, -inf), "");
  EXPECT_NE(fault(inf, nan), "");
  EXPECT_NE(fault(3e38F, inf), "");
  EXPECT_EQ(fault(nan, nan), "");
  EXPECT_EQ(fault(-inf, -inf), "");
  EXPECT_NE(compare_reference({floats({1, 1})}, {{1, 1}}, {nan}, 0).fault, "");
}

TEST(Comparator, BoundIsInclusiveAndExact) {
  // error 3, norm 5: relative L2 0.6 by hand.
  EXPECT_NE(compare_reference({floats({3, 7})}, {{3, 4}}, {0.5999}, 0).fault, "");
  EXPECT_EQ(compare_reference({floats({3, 7})}, {{3, 4}}, {0.6}, 0).fault, "");
  EXPECT_DOUBLE_EQ(compare_reference({floats({3, 7})}, {{3, 4}}, {1.0}, 0).worst, 0.6);
}

TEST(Comparator, AReferenceThatDoesNotCoverTheOutputIsAFault) {
  EXPECT_NE(compare_reference({floats({1, 2})}, {{1}}, {0.5}, 0).fault, "");
  EXPECT_NE(compare_reference({floats({1, 2})}, {}, {0.5}, 0).fault, "");
  EXPECT_NE(compare_bytes({floats({1, 2})}, {floats({1})}, 0, "stock").fault, "");
  EXPECT_NE(compare_bytes({floats({1})}, {}, 0, "stock").fault, "");
}

TEST(Comparator, BytesSeeSignedZeroAndNanPayload) {
  const auto a = compare_bytes({floats({0.0F})}, {floats({-0.0F})}, 0, "stock");
  EXPECT_EQ(a.mismatched_bytes, 1U);
  EXPECT_EQ(a.max_ulp, 0U);
  EXPECT_EQ(a.fault, "y[0]: got 0 (0x00000000), stock has -0 (0x80000000); 1 of 1 values differ");
}

}  // namespace
}  // namespace assay
