// The fast lane (int8 activations, half-precision cache) against the goldens of the exact one. Most of its distance is
// experts chosen otherwise at near-ties, so the bounds are tight where routing is forced and wide where it is free.
#include <cmath>
#include <cstring>
#include <set>

#include "gtest/gtest.h"

#include "engine/golden.h"
#include "engine/perplexity.h"

namespace assay {
namespace {

ModelSettings settings(Numerics numerics, const std::string& variant) {
  return {.numerics = numerics,
          .threads = 2,
          .context = kPerplexityWindow,
          .selection = vector_variants(variant)};
}

Model& fast() {
  static Model m(kShippedModel, settings(Numerics::kFast, "avx2"));
  return m;
}
Model& exact() {
  static Model m(kShippedModel, settings(Numerics::kExact, "avx2"));
  return m;
}

std::vector<TokenId> ids_of(int i) { return golden().ints("ids" + std::to_string(i)); }

TEST(FastGolden, WithTheExactLanesExpertsLogitsAreWithinQuantisation) {
  for (int i = 0; i < kGoldenSequences; ++i) {
    const RouteTable routes = routes_of(exact(), ids_of(i));
    Session session(fast());
    session.set_hooks({.routes = &routes});
    const Distances d = distances(golden_rows(session, i));
    EXPECT_LE(d.all, 0.012) << "sequence " << i;
    EXPECT_LE(d.worst(), 0.03) << "sequence " << i;
    EXPECT_GT(d.all, 1e-4) << "sequence " << i << ": that is the exact lane";
    std::printf("sequence %d: relative L2 %.4f, worst row %.4f\n", i, d.all, d.worst());
  }
}

TEST(FastGolden, WithItsOwnExpertsLogitsStayNear) {
  for (int i = 0; i < kGoldenSequences; ++i) {
    Session session(fast());
    const Distances d = distances(golden_rows(session, i));
    EXPECT_LE(d.all, 0.15) << "sequence " << i;
    EXPECT_LE(d.median(), 0.04) << "sequence " << i;
    std::printf("sequence %d: relative L2 %.4f, median row %.4f\n", i, d.all, d.median());
  }
}

TEST(FastGolden, ChoosesTheExactLanesExperts) {
  std::size_t agree = 0;
  std::size_t all = 0;
  for (int i = 0; i < kGoldenSequences; ++i) {
    const RouteTable want = routes_of(exact(), ids_of(i));
    const RouteTable got = routes_of(fast(), ids_of(i));
    ASSERT_EQ(got.positions(), want.positions());
    const auto k = fast().config().experts_used;
    for (int p = 0; p < want.positions(); ++p) {
      for (int layer = 0; layer < fast().config().layers; ++layer) {
        const std::set<std::int32_t> chosen(want.at(layer, p), want.at(layer, p) + k);
        for (int j = 0; j < k; ++j) agree += chosen.count(got.at(layer, p)[j]);
        all += static_cast<std::size_t>(k);
      }
    }
  }
  ASSERT_GT(all, 0U);
  EXPECT_GE(static_cast<double>(agree), 0.98 * static_cast<double>(all));
  std::printf("%zu of %zu experts agree\n", agree, all);
}

TEST(FastGolden, TeacherForcedItSaysTheSameTokenUnlessTwoAreNear) {
  const TeacherForced said = teacher_forced(fast());
  EXPECT_EQ(said.wrong, std::vector<std::string>{});
  EXPECT_EQ(said.steps, 192);
  EXPECT_GE(said.equal, 0.95 * said.steps);
}

TEST(FastGolden, EveryVariantGivesTheBitsOfStock) {
  Model stock(kShippedModel, {.numerics = Numerics::kFast, .threads = 2, .context = 512});
  const auto want = logits_of(stock, 1);
  const auto step = logits_of(stock, 0, true);
  for (const char* variant : {"avx2", "avx512"}) {
    Model m(kShippedModel, settings(Numerics::kFast, variant));
    const auto got = logits_of(m, 1);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << variant;
    const auto one = logits_of(m, 0, true);
    ASSERT_EQ(one.size(), step.size());
    EXPECT_EQ(std::memcmp(one.data(), step.data(), step.size() * sizeof(float)), 0) << variant;
  }
}

TEST(FastGolden, TokenByTokenGivesTheBitsOfTheBatch) {
  for (const char* variant : {"avx2", "avx512"}) {
    Model m(kShippedModel, settings(Numerics::kFast, variant));
    const auto batch = logits_of(m, 2);
    const auto step = logits_of(m, 2, true);
    ASSERT_EQ(batch.size(), step.size());
    EXPECT_EQ(std::memcmp(batch.data(), step.data(), batch.size() * sizeof(float)), 0) << variant;
  }
}

TEST(FastGolden, PerplexityIsThatOfTheExactLane) {
  const std::string text = read_file(ASSAY_SOURCE_DIR "/engine/testdata/heldout.txt");
  const Perplexity want = perplexity(exact(), text);
  const Perplexity got = perplexity(fast(), text);
  ASSERT_GT(want.scored, 1000);
  ASSERT_EQ(got.scored, want.scored);
  EXPECT_LE(std::fabs(got.mean() - want.mean()), 0.01);
  EXPECT_NE(got.mean(), want.mean()) << "one lane was measured twice";
  std::printf("loss: exact %.5f, fast %.5f nats a token\n", want.mean(), got.mean());
}

}  // namespace
}  // namespace assay
