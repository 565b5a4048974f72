// The engine's shadow cache against replay: the same decisions on the same routing, access for access.
#include "engine/shadow_cache.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/registry.h"
#include "replay/policy.h"
#include "replay/replay.h"
#include "replay/testing.h"

namespace assay {
namespace {

using replay::Event;

const std::string kRoot = ASSAY_SOURCE_DIR;

// One model for all tests; a prompt fed in chunks of odd sizes, then token by token, then a second sequence.
class ShadowCacheTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model = std::make_unique<Model>(kRoot + "/engine/models/tiny-gemma4-moe-q4_0.gguf",
                                    ModelSettings{.chunk = 48});
    const std::string text = read_file(kRoot + "/engine/testdata/heldout.txt").substr(0, 700);
    ids = model->tokenizer().encode(text, true, SpecialMode::kNone);
  }
  static void TearDownTestSuite() { model.reset(); }

  // Last logits of each call.
  static std::vector<float> run(const SessionHooks& hooks) {
    Session session(*model);
    session.set_hooks(hooks);
    std::vector<float> out;
    const auto keep = [&](std::span<const float> logits) {
      out.insert(out.end(), logits.begin(), logits.end());
    };
    const auto all = std::span(ids);
    keep(session.feed(all.first(100)));
    for (std::size_t i = 100; i < 110; ++i) keep(session.feed(all.subspan(i, 1)));
    session.reset();
    keep(session.feed(all.subspan(40, 30)));
    return out;
  }
  static ExpertPolicy::Shape shape(int slots, bool per_layer) {
    const ModelConfig& c = model->config();
    return {.layers = c.layers,
            .experts = c.experts,
            .top_k = c.experts_used,
            .slots = slots,
            .per_layer = per_layer};
  }

  static std::unique_ptr<Model> model;
  static std::vector<TokenId> ids;
};
std::unique_ptr<Model> ShadowCacheTest::model;
std::vector<TokenId> ShadowCacheTest::ids;

// What replay's policy of that name decides over the routing that the decisions hold.
std::vector<Event> replayed(const std::vector<ShadowDecision>& decisions,
                            const ExpertPolicy::Shape& shape,
                            const std::string& policy) {
  const replay::TemporaryFile file(".mrt");
  TraceFormat format;
  format.geometry = {shape.layers, shape.experts, shape.top_k};
  {
    TraceWriter writer(file.path(), format);
    writer.begin_conversation(0, Split::kTrain);
    TraceStep step;
    for (const auto& d : decisions) {
      step.ids.insert(step.ids.end(), d.ids.begin(), d.ids.end());
      if (d.layer + 1 < shape.layers) continue;
      step.position = static_cast<std::uint32_t>(d.step);
      writer.append(step);
      step.ids.clear();
    }
    writer.seal();
  }
  replay::Sequence sequence({file.path()}, {});
  const replay::RunSpec spec{
      replay::parse_policy(policy),
      replay::Mode::kGroup,
      shape.per_layer ? replay::Partition::kLayer : replay::Partition::kGlobal,
      static_cast<std::uint64_t>(shape.slots)};
  auto simulator = spec.policy.make(replay::setup_for(sequence, nullptr, spec));
  std::vector<Event> events;
  simulator->log_to(&events);
  replay::Block block;
  sequence.decode(0, static_cast<std::size_t>(sequence.steps()), false, block);
  std::vector<std::uint16_t> misses(block.groups());
  simulator->run(block, misses.data());
  return events;
}

std::vector<Event> events_of(const std::vector<ShadowDecision>& decisions,
                             const ExpertPolicy::Shape& shape) {
  std::vector<Event> events;
  for (std::size_t g = 0; g < decisions.size(); ++g) {
    const ShadowDecision& d = decisions[g];
    for (std::size_t r = 0; r < d.ids.size(); ++r) {
      Event e;
      e.group = g;
      e.object = static_cast<std::uint32_t>(d.layer * shape.experts + d.ids[r]);
      e.hit = d.resident[r] == 1;
      e.admitted = !e.hit && d.slot[r] >= 0;
      if (d.evicted[r] >= 0) e.victim = static_cast<std::uint32_t>(d.evicted[r]);
      events.push_back(e);
    }
  }
  return events;
}

void sort_group_members(std::vector<Event>& events) {
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.group, a.object) < std::pair(b.group, b.object);
  });
}

TEST_F(ShadowCacheTest, DecidesAsReplayDoesAccessForAccess) {
  for (const auto& [name, unused] : variants<ExpertPolicy>()) {
    const std::string policy = std::string_view(name) == "stock" ? "lru" : name;
    for (const bool per_layer : {false, true}) {
      const auto s = shape(192, per_layer);
      ShadowCache cache(s, name);
      std::vector<ShadowDecision> log;
      cache.set_log([&](const ShadowDecision& d) { log.push_back(d); });
      run({.routed = [&](const RoutedChunk& c) { cache.routed(c); }});
      ASSERT_EQ(log.size(), 140U * static_cast<std::size_t>(s.layers));
      EXPECT_EQ(cache.steps(), 140);
      auto got = events_of(log, s);
      auto want = replayed(log, s, policy);
      sort_group_members(got);
      sort_group_members(want);
      ASSERT_EQ(got.size(), want.size());
      std::uint64_t misses = 0;
      std::uint64_t victims = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(got[i] == want[i]) << name << (per_layer ? " per layer" : " global")
                                       << ", access " << i << ", object " << got[i].object;
        misses += got[i].hit ? 0 : 1;
        victims += got[i].victim != replay::kNone ? 1 : 0;
      }
      EXPECT_EQ(cache.misses(), misses);
      EXPECT_EQ(cache.accesses(), got.size());
      EXPECT_GT(victims, 1000U) << "too few evictions to tell policies apart";
    }
  }
}

TEST_F(ShadowCacheTest, LeavesTheOutputAlone) {
  const auto plain = run({});
  ShadowCache cache(shape(96, false), "decay32");
  const auto watched = run({.routed = [&](const RoutedChunk& c) { cache.routed(c); }});
  ASSERT_EQ(plain.size(), watched.size());
  EXPECT_EQ(std::memcmp(plain.data(), watched.data(), plain.size() * sizeof(float)), 0);
}

TEST_F(ShadowCacheTest, RefusesShapesAndNamesThatTheOpDoesNotHave) {
  EXPECT_THROW(ShadowCache(shape(7, false), "stock"), UserError);
  EXPECT_THROW(ShadowCache(shape(100000, false), "stock"), UserError);
  try {
    ShadowCache cache(shape(96, false), "lru");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("stock, decay32"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace assay
