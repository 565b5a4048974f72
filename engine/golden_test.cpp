// The exact lane against numbers of an independent implementation (Hugging Face transformers in float32), and against
// itself: any cut into chunks, any thread count and any neighbour give the same bits.
#include "engine/golden.h"

#include <cmath>
#include <map>
#include <set>

#include "gtest/gtest.h"

#include "engine/forward.h"
#include "engine/sampler.h"
#include "kernels/base/measure.h"

namespace assay {
namespace {

const std::string kModel = ASSAY_SOURCE_DIR "/engine/models/tiny-gemma4-moe-q4_0.gguf";

const Golden& golden() {
  static const Golden g(ASSAY_SOURCE_DIR "/engine/testdata/golden");
  return g;
}

// Vector variants that promise stock's bits in the exact lane, so that the suite is quick; where the CPU lacks them stock
// serves. Stock itself is compared below.
Selection quick() {
  Selection s;
  for (const OpInfo* op : all_ops()) {
    const int avx2 = op->find("avx2");
    Choice c;
    if (avx2 >= 0 &&
        op->variants[static_cast<std::size_t>(avx2)].exactness == Exactness::kBitwise) {
      c.variant = "avx2";
    }
    s.choices[op->name] = c;
  }
  return s;
}

Model& model() {
  static Model m(kModel, {.threads = 2, .context = 512, .selection = quick()});
  return m;
}

double distance(std::span<const float> got, std::span<const float> want) {
  const std::vector<double> reference(want.begin(), want.end());
  return rel_l2(got, reference);
}

// Logits of the golden positions of sequence i, row after row. chunk 1: token by token.
std::vector<float> logits_of(Model& m, int i, bool step) {
  const auto ids = golden().ints("ids" + std::to_string(i));
  const auto positions = golden().ints("pos" + std::to_string(i));
  const std::set<int> wanted(positions.begin(), positions.end());
  std::vector<float> rows;
  Session session(m);
  const auto wants = [&](int p) { return wanted.contains(p); };
  const auto sink = [&](int, std::span<const float> row) {
    rows.insert(rows.end(), row.begin(), row.end());
  };
  if (step) {
    for (const TokenId id : ids) session.feed({&id, 1}, wants, sink);
  } else {
    session.feed(ids, wants, sink);
  }
  return rows;
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
  const auto ids = golden().ints("stage_ids");
  std::map<std::string, std::vector<float>> got;
  Session session(model());
  session.set_hooks({.stage = [&](const StageChunk& c) {
    if (c.layer != 0 && c.layer != 5) return;
    auto& rows = got["stage.blk" + std::to_string(c.layer) + "." + c.name];
    rows.insert(rows.end(), c.data, c.data + static_cast<std::ptrdiff_t>(c.tokens) * c.width);
  }});
  session.feed(ids);
  for (const int layer : {0, 5}) {
    for (const char* name : kStageNames) {
      const std::string key = "stage.blk" + std::to_string(layer) + "." + name;
      const auto want = golden().floats(key);
      ASSERT_EQ(got[key].size(), want.size()) << key;
      if (std::string(name) == "router_ids") {
        EXPECT_EQ(got[key], want) << key;
      } else {
        EXPECT_LE(distance(got[key], want), 1e-5) << key;
      }
    }
  }
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
    Model m(kModel,
            {.kv = kv, .threads = threads, .context = 300, .chunk = chunk, .selection = quick()});
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
  Model stock(kModel, {.threads = 2, .context = 512});
  const auto want = logits_of(stock, 1, false);
  const auto got = logits_of(model(), 1, false);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace assay
