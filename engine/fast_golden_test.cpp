// The fast lane (int8 activations, half-precision cache) against the goldens of the exact one. Most of its distance is
// experts chosen otherwise at near-ties, so the bounds are tight where routing is forced and wide where it is free.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gtest/gtest.h"

#include "engine/golden.h"
#include "engine/perplexity.h"
#include "engine/sampler.h"

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

// The experts that a lane gives to every token of sequence i.
RouteTable routes_of(Model& m, int i) {
  RouteTable table(m.config().layers, m.config().experts_used);
  Session session(m);
  session.set_hooks({.routed = [&](const RoutedChunk& chunk) { table.record(chunk); }});
  session.feed(
      golden().ints("ids" + std::to_string(i)),
      [](int) { return false; },
      [](int, std::span<const float>) {});
  return table;
}

struct Distances {
  double sequence = 0.0;
  std::vector<double> row;  // rising
};
Distances distances(std::span<const float> got, std::span<const float> want, int vocab) {
  const auto width = static_cast<std::size_t>(vocab);
  EXPECT_EQ(got.size(), want.size());
  EXPECT_GE(want.size(), width);
  Distances d{.sequence = distance(got, want), .row = {}};
  for (std::size_t at = 0; at < want.size(); at += width) {
    d.row.push_back(distance(got.subspan(at, width), want.subspan(at, width)));
  }
  std::sort(d.row.begin(), d.row.end());
  return d;
}

TEST(FastGolden, WithTheExactLanesExpertsLogitsAreWithinQuantisation) {
  for (int i = 0; i < kGoldenSequences; ++i) {
    const RouteTable routes = routes_of(exact(), i);
    Session session(fast());
    session.set_hooks({.routes = &routes});
    const auto got = logits_of(session, i);
    const auto d =
        distances(got, golden().floats("logits" + std::to_string(i)), fast().config().vocab);
    EXPECT_LE(d.sequence, 0.012) << "sequence " << i;
    EXPECT_LE(d.row.back(), 0.03) << "sequence " << i;
    EXPECT_GT(d.sequence, 1e-4) << "sequence " << i << ": that is the exact lane";
    std::printf("sequence %d: relative L2 %.4f, worst row %.4f\n", i, d.sequence, d.row.back());
  }
}

TEST(FastGolden, WithItsOwnExpertsLogitsStayNear) {
  for (int i = 0; i < kGoldenSequences; ++i) {
    const auto got = logits_of(fast(), i);
    const auto d =
        distances(got, golden().floats("logits" + std::to_string(i)), fast().config().vocab);
    EXPECT_LE(d.sequence, 0.15) << "sequence " << i;
    EXPECT_LE(d.row[d.row.size() / 2], 0.04) << "sequence " << i;
    std::printf(
        "sequence %d: relative L2 %.4f, median row %.4f\n", i, d.sequence, d.row[d.row.size() / 2]);
  }
}

TEST(FastGolden, ChoosesTheExactLanesExperts) {
  std::size_t agree = 0;
  std::size_t all = 0;
  for (int i = 0; i < kGoldenSequences; ++i) {
    const RouteTable want = routes_of(exact(), i);
    const RouteTable got = routes_of(fast(), i);
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

// The golden text is fed, whatever the lane itself would have said.
TEST(FastGolden, TeacherForcedItSaysTheSameTokenUnlessTwoAreNear) {
  int steps = 0;
  int equal = 0;
  for (const auto& prompt : golden().prompts()) {
    const auto want = prompt.at("greedy_ids").get<std::vector<TokenId>>();
    const auto gap = prompt.at("top2_gap").get<std::vector<double>>();
    ASSERT_EQ(gap.size(), want.size());
    Session session(fast());
    auto logits = session.feed(prompt.at("prompt_ids").get<std::vector<TokenId>>());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const TokenId got = greedy_token(logits);
      if (gap[i] >= 0.25) {
        EXPECT_EQ(got, want[i]) << prompt.at("prompt") << " step " << i;
      }
      equal += got == want[i] ? 1 : 0;
      ++steps;
      logits = session.feed({&want[i], 1});
    }
  }
  EXPECT_EQ(steps, 192);
  EXPECT_GE(equal, 0.95 * steps);
  std::printf("%d of %d steps equal\n", equal, steps);
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
