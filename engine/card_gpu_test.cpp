// The engine on the card: the goldens of the exact lane with stock kernels, the fast lane's bounds with variants armed, the
// graph against single launches, and memory. Under the CPU executor (preset simt) the same tests run on parts of the
// sequences: it is some thousand times slower.
#include <algorithm>
#include <map>

#include "gtest/gtest.h"

#include "engine/golden.h"
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"

namespace assay {
namespace {

using Choices = std::map<std::string, std::string>;  // op: variant, or parity:variant

ModelSettings settings(Numerics numerics, const Choices& choices) {
  ModelSettings s{.backend = Backend::kCuda, .numerics = numerics, .threads = 1, .context = 512};
  for (const OpInfo* op : all_ops()) s.selection.choices[op->name] = {};
  for (const auto& [op, text] : choices) {
    const bool parity = text.rfind("parity:", 0) == 0;
    s.selection.choices[op] = {parity ? text.substr(7) : text, parity, "switch"};
  }
  // One launch is thousands of fibers there: few tokens at a time keep a test short.
  if (gpu::simulated()) s.chunk = 64;
  return s;
}
// Everything of a token on the card, with stock's arithmetic.
const Choices kResident = {{"router_topk", "device"}};

class CardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Why why = gpu::unavailable()) GTEST_SKIP() << why;
  }
  static std::vector<int> sequences() {
    return gpu::simulated() ? std::vector<int>{1} : std::vector<int>{0, 1, 2, 3};
  }
};
class GoldenCard : public CardTest {};
class EngineCard : public CardTest {};

// Of prompts, tokens or steps.
std::size_t at_most(std::size_t simulated) { return gpu::simulated() ? simulated : kAll; }

std::vector<TokenId> ids_of(int i, std::size_t most) {
  auto ids = golden().ints("ids" + std::to_string(i));
  ids.resize(std::min(ids.size(), at_most(most)));
  return ids;
}

TEST_F(GoldenCard, ExactLaneInOneBatchAndTokenByToken) {
  Model model(kShippedModel, settings(Numerics::kExact, {}));
  for (const int i : sequences()) {
    for (const bool step : {false, true}) {
      Session session(model);
      const double d = distances(golden_rows(session, i, step, at_most(step ? 6 : 12))).all;
      EXPECT_LE(d, 1e-5) << "sequence " << i << (step ? ", token by token" : "");
      std::printf("sequence %d%s: relative L2 %.3g\n", i, step ? " by token" : "", d);
    }
  }
}

TEST_F(GoldenCard, StagesOfLayers0And5AndTheRoutersChoice) {
  Model model(kShippedModel, settings(Numerics::kExact, {}));
  EXPECT_EQ(wrong_stages(model), std::vector<std::string>{});
}

TEST_F(GoldenCard, GreedyTextOfAllPromptsIsEqual) {
  Model model(kShippedModel, settings(Numerics::kExact, kResident));
  for (const auto& prompt : golden().prompts()) {
    auto want = prompt.at("greedy_ids").get<std::vector<TokenId>>();
    if (gpu::simulated()) want.resize(3);
    std::vector<TokenId> ids;
    Session session(model);
    TokenId id = session.feed_greedy(prompt.at("prompt_ids").get<std::vector<TokenId>>());
    for (;;) {
      ids.push_back(id);
      if (ids.size() == want.size()) break;
      id = session.feed_greedy({&ids.back(), 1});
    }
    EXPECT_EQ(ids, want) << prompt.at("prompt");
    if (gpu::simulated()) break;
  }
}

// Beside the goldens' prompts, of which there are fewer: pieces of their sequences.
TEST_F(EngineCard, HostAndCardSayTheSameOnTenPrompts) {
  const std::size_t prompts = gpu::simulated() ? 2 : 10;
  const std::size_t tokens = gpu::simulated() ? 3 : 32;
  std::vector<std::vector<TokenId>> starts;
  for (std::size_t i = 0; i < prompts; ++i) {
    const auto ids = golden().ints(i % 2 == 0 ? "ids2" : "ids3");
    const std::size_t first = i / 2 * 17;
    const std::size_t count = gpu::simulated() ? 3 + i : 5 + 3 * i;
    starts.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(first),
                        ids.begin() + static_cast<std::ptrdiff_t>(first + count));
    starts.back().front() = ids.front();  // the token that begins every text
  }
  const auto texts = [&](ModelSettings s) {
    Model model(kShippedModel, s);
    std::vector<std::vector<TokenId>> out;
    for (const auto& start : starts) {
      Session session(model);
      std::vector<TokenId> ids{session.feed_greedy(start)};
      while (ids.size() < tokens) ids.push_back(session.feed_greedy({&ids.back(), 1}));
      out.push_back(std::move(ids));
    }
    return out;
  };
  auto on_host = settings(Numerics::kExact, {});
  on_host.backend = Backend::kHost;
  EXPECT_EQ(texts(settings(Numerics::kExact, kResident)), texts(on_host));
}

// A watched session runs op by op, an unwatched one as a graph from the second token on; across the end of a graph's range.
TEST_F(EngineCard, AGraphGivesTheBitsOfSingleLaunches) {
  Model model(kShippedModel, settings(Numerics::kExact, kResident));
  const int before_edge = gpu::simulated() ? 5 : 250;
  const auto ids = ids_of(2, 10);
  const auto run = [&](bool watched) {
    Session session(model);
    if (watched) session.set_hooks({.routed = [](const RoutedChunk&) {}});
    std::vector<float> rows;
    session.feed(std::span(ids).first(static_cast<std::size_t>(before_edge)));
    for (std::size_t t = 0; t < 12 && before_edge + t < ids.size(); ++t) {
      const auto row = session.feed({&ids[static_cast<std::size_t>(before_edge) + t], 1});
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  };
  const auto calls = [&] {
    std::uint64_t n = 0;
    for (const auto& r : model.reports()) n += r.op == "decode_token" ? 0 : r.stock + r.selected;
    return n;
  };
  const auto single = run(true);
  const auto calls_single = calls();
  const auto graph = run(false);
  ASSERT_EQ(single.size(), graph.size());
  ASSERT_FALSE(single.empty());
  EXPECT_EQ(std::memcmp(single.data(), graph.data(), single.size() * sizeof(float)), 0);
  EXPECT_EQ(calls() - calls_single, calls_single) << "replays are counted as what they run";
}

TEST_F(EngineCard, UnderParityStockIsServedAndTheDifferenceReported) {
  const auto ids = ids_of(2, 4);
  const std::span<const TokenId> few(ids.data(), std::min<std::size_t>(ids.size(), 12));
  const auto run = [&](const Choices& choices, std::vector<DispatchReport>* reports) {
    Model model(kShippedModel, settings(Numerics::kExact, choices));
    Session session(model);
    std::vector<float> rows;
    for (const TokenId& id : few) {
      const auto row = session.feed({&id, 1});
      rows.insert(rows.end(), row.begin(), row.end());
    }
    if (reports != nullptr) *reports = model.reports();
    return rows;
  };
  const auto want = run({}, nullptr);
  std::vector<DispatchReport> reports;
  const auto got =
      run({{"router_topk", "parity:device"}, {"attention_decode", "parity:coalesced"}}, &reports);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
  int seen = 0;
  for (const auto& r : reports) {
    if (!r.choice.parity) continue;
    ++seen;
    EXPECT_GT(r.compared, 0U) << r.op;
    EXPECT_EQ(r.broke_rules, 0U) << r.op;
    EXPECT_LE(r.worst_rel_l2, 1e-5) << r.op;
  }
  EXPECT_EQ(seen, 2);
}

TEST_F(EngineCard, MemoryIsThePlanAndStaysFlatOverSessions) {
  const auto before = gpu::memory();
  Model model(kShippedModel, settings(Numerics::kFast, kResident));
  std::size_t most = 0;
  const auto ids = ids_of(2, 3);
  for (int i = 0; i < (gpu::simulated() ? 3 : 100); ++i) {
    Session session(model);
    TokenId id = session.feed_greedy({ids.data(), 2});
    for (int t = 0; t < 3; ++t) id = session.feed_greedy({&id, 1});
    const auto now = gpu::memory();
    if (i == 0) most = now.held_bytes;
    EXPECT_EQ(now.held_bytes, most) << "session " << i;
    const std::size_t used = now.held_bytes - before.held_bytes;
    EXPECT_LE(used, model.plan().total());
    EXPECT_GE(used + (std::size_t{64} << 20), model.plan().total());
  }
}

TEST_F(EngineCard, AModelThatDoesNotFitIsRefusedWithTheBytesShort) {
  auto s = settings(Numerics::kFast, {});
  s.vram_budget_bytes = gpu::memory().held_bytes + (std::size_t{1} << 20);
  try {
    Model model(kShippedModel, s);
    FAIL() << "a budget of 1 MiB was enough";
  } catch (const HardwareError& e) {
    EXPECT_NE(std::string(e.what()).find("bytes short"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("--vram-budget"), std::string::npos) << e.what();
  }
}

TEST_F(EngineCard, AnAllocationThatFailsIsAnErrorAndTheNextModelLoads) {
  const auto ids = ids_of(2, 2);
  int failed = 0;
  for (std::uint64_t n = 1;; ++n) {
    gpu::fail_allocation(n);
    try {
      Model model(kShippedModel, settings(Numerics::kFast, kResident));
      Session session(model);
      session.feed_greedy({ids.data(), 1});
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("asked for"), std::string::npos) << e.what();
      ++failed;
      ASSERT_LT(n, 100U);
      continue;
    }
    break;
  }
  gpu::fail_allocation(0);
  EXPECT_GE(failed, 4);  // weights, cache, activations, logits
}

// Every float kernel by its int8 or half counterpart.
Choices quantised() {
  Choices armed;
  for (const auto& [op, variant] : Choices{{"router_topk", "device"},
                                           {"gemv_quant", "dp4a"},
                                           {"gemm_quant", "f16_tensor_core"},
                                           {"experts_decode", "grouped_dp4a"},
                                           {"experts_prefill", "grouped"},
                                           {"attention_decode", "split_kv"},
                                           {"attention_prefill", "mma_tiles"}}) {
    if (find_op(op).find(variant) >= 0) armed[op] = variant;
  }
  // Its tensor-core tiles take the CPU executor minutes a layer.
  if (gpu::simulated()) armed.erase("experts_prefill");
  return armed;
}

TEST_F(GoldenCard, FastLaneWithItsOwnRoutesStaysNearAndSaysTheSame) {
  Model fast(kShippedModel, settings(Numerics::kFast, quantised()));
  if (!gpu::simulated()) {
    for (const int i : sequences()) {
      Session session(fast);
      const double median = distances(golden_rows(session, i)).median();
      EXPECT_LE(median, 0.04) << "sequence " << i;
      std::printf("sequence %d: median row %.4f\n", i, median);
    }
  }
  const TeacherForced said = teacher_forced(fast, at_most(1), at_most(2));
  EXPECT_EQ(said.wrong, std::vector<std::string>{});
  EXPECT_EQ(said.steps, gpu::simulated() ? 2 : 192);
  EXPECT_GE(said.equal, 0.95 * said.steps);
}

TEST_F(GoldenCard, FastLaneWithVariantsArmedIsWithinQuantisation) {
  const Choices armed = quantised();
  Model exact(kShippedModel, settings(Numerics::kExact, {}));
  Model fast(kShippedModel, settings(Numerics::kFast, armed));
  for (const int i : sequences()) {
    const RouteTable routes = routes_of(exact, ids_of(i, 9));
    Session session(fast);
    session.set_hooks({.routes = &routes});
    const Distances d = distances(golden_rows(session, i, false, at_most(9)));
    EXPECT_LE(d.all, 0.012) << "sequence " << i;
    EXPECT_GT(d.all, 1e-6) << "sequence " << i << ": nothing was quantised";
    if (!gpu::simulated()) {
      EXPECT_LE(d.worst(), 0.03) << "sequence " << i;
    }
    std::printf("sequence %d: relative L2 %.4f\n", i, d.all);
  }
}

}  // namespace
}  // namespace assay
