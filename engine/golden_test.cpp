// The exact lane against numbers of an independent implementation (Hugging Face transformers in float32), and against
// itself: any cut into chunks, any thread count and any neighbour give the same bits.
#include "engine/golden.h"

#include "gtest/gtest.h"

#include "engine/forward.h"
#include "engine/sampler.h"

namespace assay {
namespace {

Model& model() {
  static Model m(kShippedModel,
                 {.threads = 2, .context = 512, .selection = vector_variants("avx2")});
  return m;
}

TEST(Golden, LogitsOfAllSequencesMatchInOneBatch) {
  for (int i = 0; i < 4; ++i) {
    const double d =
        distance(logits_of(model(), i, false), golden().floats("logits" + std::to_string(i)));
    EXPECT_LE(d, 2e-6) << "sequence " << i;
    RecordProperty("rel_l2_" + std::to_string(i), std::to_string(d));
    std::printf("sequence %d: relative L2 %.3g\n", i, d);
  }
}

TEST(Golden, TokenByTokenGivesTheBitsOfTheBatch) {
  for (int i = 0; i < 4; ++i) {
    const auto batch = logits_of(model(), i, false);
    const auto step = logits_of(model(), i, true);
    ASSERT_EQ(batch.size(), step.size());
    EXPECT_EQ(std::memcmp(batch.data(), step.data(), batch.size() * sizeof(float)), 0)
        << "sequence " << i;
  }
}

TEST(Golden, StagesOfLayers0And5Match) {
  EXPECT_EQ(wrong_stages(model()), std::vector<std::string>{});
}

TEST(Golden, GreedyTextOfAllPromptsIsEqual) {
  for (const auto& prompt : golden().prompts()) {
    const auto want = prompt.at("greedy_ids").get<std::vector<TokenId>>();
    std::vector<TokenId> ids;
    Session session(model());
    auto logits = session.feed(prompt.at("prompt_ids").get<std::vector<TokenId>>());
    while (ids.size() < want.size()) {
      ids.push_back(greedy_token(logits));
      if (ids.size() < want.size()) logits = session.feed({&ids.back(), 1});
    }
    EXPECT_EQ(ids, want) << prompt.at("prompt");
  }
}

TEST(Forward, NoCutIntoChunksAndNoThreadCountChangesABit) {
  const auto all = golden().ints("ids2");
  const std::vector<TokenId> ids(all.begin(), all.begin() + 300);  // more than two windows of 128
  const auto run = [&](int chunk, int threads, KvType kv) {
    Model m(kShippedModel,
            {.kv = kv,
             .threads = threads,
             .context = 300,
             .chunk = chunk,
             .selection = vector_variants("avx2")});
    Session session(m);
    std::vector<float> rows;
    session.feed(
        ids,
        [](int p) { return p % 13 == 0 || p == 299; },
        [&](int, std::span<const float> row) { rows.insert(rows.end(), row.begin(), row.end()); });
    return rows;
  };
  for (const KvType kv : {KvType::kF32, KvType::kF16}) {
    const auto want = run(512, 1, kv);
    for (const auto& [chunk, threads] : {std::pair{512, 3}, {7, 2}, {128, 1}, {131, 2}, {299, 2}}) {
      const auto got = run(chunk, threads, kv);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << "chunk " << chunk << ", " << threads << " threads, " << to_string(kv);
    }
  }
}

TEST(Forward, StockGivesTheBitsOfTheVariantsThatPromiseThem) {
  Model stock(kShippedModel, {.threads = 2, .context = 512});
  const auto want = logits_of(stock, 1, false);
  const auto got = logits_of(model(), 1, false);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace assay
