// Counts on recorded routing. The cut lies beside the trace code; the whole trace is used where it is found.
#include <fstream>

#include <gtest/gtest.h>

#include "replay/curves.h"
#include "replay/facts.h"
#include "replay/replay.h"

namespace assay::replay {
namespace {

const std::string kCut = std::string(ASSAY_SOURCE_DIR "/traces/testdata/tiny-docs-cut.mrt");

struct Golden {
  const char* policy;
  std::uint64_t global_group, layer_group, global_plain, layer_plain;
};
// Misses at 50 % residency, 200 steps of warm-up. LFU and SIEVE of the global plain column were counted by a separate program
// as well; all of them agree with the twins of policy_twins_test.cpp on random traces.
const Golden kGolden[] = {{"lru", 128043, 122862, 128584, 129222},
                          {"fifo", 152387, 142196, 153023, 151090},
                          {"lfu", 241025, 132362, 241212, 227704},
                          {"clock", 124524, 120764, 124977, 126620},
                          {"sieve", 241025, 112450, 241212, 120656},
                          {"s3fifo", 116735, 112136, 117087, 118707},
                          {"arc", 128044, 122860, 128583, 129222},
                          {"decay32", 108040, 104884, 108392, 109185},
                          {"second-miss:64", 127014, 122590, 127458, 128264},
                          {"static-hindsight", 137251, 137774, 137251, 137774},
                          {"belady", 49186, 56759, 49039, 54602},
                          {"belady-bypass", 49022, 54573, 48949, 53567},
                          {"belady:8", 69049, 69615, 69049, 69531},
                          {"belady:64", 49186, 56759, 49039, 54602}};

TEST(Golden, CountsOnTheCutOfRecordedRouting) {
  Sequence s({kCut}, {});
  EXPECT_EQ(s.steps(), 5210U);
  std::vector<RunSpec> specs;
  std::vector<std::uint64_t> want;
  for (const auto& g : kGolden) {
    for (const auto mode : {Mode::kGroup, Mode::kPlain}) {
      for (const auto partition : {Partition::kGlobal, Partition::kLayer}) {
        specs.push_back({parse_policy(g.policy), mode, partition, 384});
        const bool layer = partition == Partition::kLayer;
        want.push_back(mode == Mode::kGroup ? (layer ? g.layer_group : g.global_group)
                                            : (layer ? g.layer_plain : g.global_plain));
      }
    }
  }
  const auto results = run_policies(s, nullptr, specs, 200);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(results[i].misses, want[i]) << specs[i].describe();
    EXPECT_EQ(results[i].accesses, 480960U);
    std::uint64_t groups = 0;
    std::uint64_t sum = 0;
    for (std::size_t m = 0; m < results[i].histogram.size(); ++m) {
      groups += results[i].histogram[m];
      sum += m * results[i].histogram[m];
    }
    EXPECT_EQ(groups, 5010U * 12);
    EXPECT_EQ(sum, results[i].misses);
  }
}

TEST(Golden, WhatIsKnownOfRealRoutingHoldsOnTheCut) {
  Sequence s({kCut}, {});
  const auto misses = [&](const char* policy) {
    return run_policies(
               s, nullptr, {{parse_policy(policy), Mode::kGroup, Partition::kGlobal, 384}}, 200)[0]
        .misses;
  };
  const auto lru = static_cast<double>(misses("lru"));
  EXPECT_LT(lru, static_cast<double>(misses("static-hindsight")));
  EXPECT_LT(static_cast<double>(misses("decay32")), 0.92 * lru);
  EXPECT_GT(static_cast<double>(misses("decay:4096:2")),
            0.99 * static_cast<double>(misses("decay32")));
  EXPECT_NEAR(static_cast<double>(misses("second-miss:64")), lru, 0.03 * lru);
  EXPECT_NEAR(static_cast<double>(misses("arc")), lru, 0.03 * lru);
  const RoutingFacts f = routing_facts(s);
  EXPECT_GT(f.adjacent_share, 0.2);
  EXPECT_LT(f.adjacent_share, 0.7);
}

TEST(Golden, TheShippedCaptureIsWholeAndItsPoliciesRank) {
  const std::string path = std::string(ASSAY_SOURCE_DIR "/traces/tiny-capture.mrt");
  TraceReader reader(path);
  reader.verify_crc();
  EXPECT_TRUE(reader.info().sealed);
  Sequence all({path}, {});
  EXPECT_EQ(all.steps(), 6035U);
  EXPECT_EQ(all.conversations().size(), 10U);
  EXPECT_TRUE(all.has_weights());
  Sequence held_out({path}, {.split = Split::kHeldOut});
  EXPECT_EQ(held_out.conversations().size(), 3U);
  std::vector<RunSpec> specs;
  for (const char* policy : {"belady", "successor", "decay32", "lru"})
    specs.push_back({parse_policy(policy), Mode::kGroup, Partition::kGlobal, 384});
  const auto results = run_policies(all, nullptr, specs, 0);
  for (std::size_t i = 1; i < results.size(); ++i)
    EXPECT_LT(results[i - 1].misses, results[i].misses) << specs[i].describe();
}

TEST(Golden, DigitsOnTheWholeTrace) {
  const std::string path = std::string(ASSAY_SOURCE_DIR "/../shared/traces/tiny-gemma4-docs.mrt");
  if (!std::ifstream(path)) GTEST_SKIP() << path << " is not here";
  Sequence s({path}, {.max_steps = 20000});
  struct Row {
    const char* policy;
    double global, layer;
  };
  const Row rows[] = {{"lru", 24.90, 23.98},
                      {"decay32", 21.62, 20.95},
                      {"second-miss:64", 24.75, 23.96},
                      {"static-hindsight", 36.33, -1},
                      {"belady:8", 13.55, 13.68},
                      {"belady:64", 9.66, 11.14},
                      {"belady", 9.66, 11.14}};
  for (const auto partition : {Partition::kGlobal, Partition::kLayer}) {
    std::vector<RunSpec> specs;
    for (const auto& r : rows)
      specs.push_back({parse_policy(r.policy), Mode::kGroup, partition, 384});
    const auto results = run_policies(s, nullptr, specs, 200);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const double want = partition == Partition::kGlobal ? rows[i].global : rows[i].layer;
      if (want < 0) continue;
      EXPECT_NEAR(results[i].misses_per_step(), want, 0.006) << specs[i].describe();
    }
  }
}

}  // namespace
}  // namespace assay::replay
