#include "replay/curves.h"

#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "replay/testing.h"

namespace assay::replay {
namespace {

// Misses of one policy at one size.
std::uint64_t misses(Sequence& s,
                     const char* policy,
                     Mode mode,
                     Partition partition,
                     std::uint64_t slots,
                     std::uint64_t warmup) {
  return run_policies(s, nullptr, {{parse_policy(policy), mode, partition, slots}}, warmup)[0]
      .misses;
}

struct Shape {
  const char* name;
  TraceGeometry geometry;
  std::uint64_t steps;
  double padding;
};
// Byte ranks of each width, the time line with and without compaction, padding.
const Shape kShapes[] = {{"small", {3, 10, 3}, 200, 0.2},
                         {"one layer of 64", {1, 64, 8}, 300, 0.0},
                         {"128 experts", {2, 128, 8}, 150, 0.1},
                         {"255 experts", {1, 255, 6}, 200, 0.0},
                         {"300 experts", {2, 300, 4}, 700, 0.1},
                         {"top-1", {4, 12, 1}, 300, 0.0}};

TEST(Curves, EqualSingleSizeRunsAtEverySize) {
  for (const Shape& shape : kShapes) {
    const TemporaryFile file(".mrt");
    write_random_trace(file.path(),
                       {.geometry = shape.geometry,
                        .steps = shape.steps,
                        .padding = shape.padding,
                        .seed = seed_from_name(shape.name)});
    Sequence s({file.path()}, {});
    for (const auto mode : {Mode::kGroup, Mode::kPlain}) {
      for (const auto partition : {Partition::kGlobal, Partition::kLayer}) {
        const std::uint64_t warmup = 20;
        const CurveSet set = compute_curves(
            s, {.mode = mode, .partition = partition, .warmup = warmup, .opt = true});
        ASSERT_EQ(set.curves.size(), 2U);
        const MissCurve& lru = set.curves[0];
        const MissCurve& opt = set.curves[1];
        const std::size_t stride = std::max<std::size_t>(1, lru.slots.size() / 12);
        for (std::size_t i = 0; i < lru.slots.size();
             i += i + stride < lru.slots.size() || i + 1 == lru.slots.size()
                      ? stride
                      : lru.slots.size() - 1 - i) {
          const std::string where = std::string(shape.name) + ", " + to_string(mode) + ", " +
                                    to_string(partition) + ", " + std::to_string(lru.slots[i]) +
                                    " slots";
          EXPECT_EQ(lru.misses[i],
                    static_cast<double>(misses(s, "lru", mode, partition, lru.slots[i], warmup)))
              << where;
          EXPECT_EQ(opt.misses[i],
                    static_cast<double>(misses(s, "belady", mode, partition, opt.slots[i], warmup)))
              << where;
        }
      }
    }
  }
}

TEST(Curves, NeverRiseWithSizeAndTheOptimumIsNeverAboveAnyPolicy) {
  const TemporaryFile file(".mrt");
  write_random_trace(file.path(),
                     {.geometry = {4, 16, 4}, .steps = 400, .padding = 0.1, .seed = 77});
  Sequence s({file.path()}, {});
  for (const auto mode : {Mode::kGroup, Mode::kPlain}) {
    for (const auto partition : {Partition::kGlobal, Partition::kLayer}) {
      const CurveSet set = compute_curves(s, {.mode = mode, .partition = partition, .opt = true});
      const auto& lru = set.curves[0].misses;
      const auto& opt = set.curves[1].misses;
      for (std::size_t i = 0; i < lru.size(); ++i) {
        EXPECT_LE(opt[i], lru[i]);
        if (i == 0) continue;
        EXPECT_LE(lru[i], lru[i - 1]);
        EXPECT_LE(opt[i], opt[i - 1]);
      }
      for (std::size_t i = 0; i < opt.size(); i += 5) {
        for (const char* policy : {"lru",
                                   "fifo",
                                   "lfu",
                                   "clock",
                                   "sieve",
                                   "s3fifo",
                                   "arc",
                                   "decay32",
                                   "decay:4:1",
                                   "belady:3",
                                   "forecast:8:0.7:0.7"}) {
          EXPECT_LE(
              opt[i],
              static_cast<double>(misses(s, policy, mode, partition, set.curves[0].slots[i], 0)))
              << policy << " at " << set.curves[0].slots[i];
        }
        EXPECT_LE(static_cast<double>(
                      misses(s, "belady-bypass", mode, partition, set.curves[0].slots[i], 0)),
                  opt[i]);
      }
    }
  }
}

TEST(Curves, LongerForecastsNeverMissMoreAndEndAtLruAndBelady) {
  const TemporaryFile file(".mrt");
  write_random_trace(file.path(),
                     {.geometry = {4, 16, 4}, .steps = 500, .padding = 0.0, .seed = 5});
  Sequence s({file.path()}, {});
  const auto at = [&](const char* policy) {
    return misses(s, policy, Mode::kGroup, Partition::kGlobal, 32, 0);
  };
  // A forecast of no steps still knows the later layers of the present one; in a cache of one layer that is nothing.
  EXPECT_LT(at("belady:0"), at("lru"));
  EXPECT_EQ(misses(s, "belady:0", Mode::kGroup, Partition::kLayer, 32, 0),
            misses(s, "lru", Mode::kGroup, Partition::kLayer, 32, 0));
  EXPECT_EQ(at("belady:500"), at("belady"));
  std::uint64_t before = at("lru");
  for (const char* policy :
       {"belady:1", "belady:2", "belady:4", "belady:8", "belady:16", "belady:64"}) {
    EXPECT_LE(at(policy), before) << policy;
    before = at(policy);
  }
  EXPECT_GT(at("forecast:16:0.5:1"), at("belady:16"));
  EXPECT_GT(at("forecast:16:1:0.5"), at("belady:16"));
}

TEST(Curves, ShardsAtFullRateIsExactAndAtPartRateStatesItsError) {
  const TemporaryFile file(".mrt");
  write_random_trace(file.path(),
                     {.geometry = {8, 128, 4}, .steps = 500, .padding = 0.0, .seed = 9});
  Sequence s({file.path()}, {});
  const CurveSet full = compute_curves(s, {.shards_rate = 1.0});
  ASSERT_EQ(full.curves.size(), 2U);
  EXPECT_EQ(full.curves[1].misses, full.curves[0].misses);
  EXPECT_EQ(full.curves[1].worst_error_share, 0.0);
  const CurveSet part = compute_curves(s, {.shards_rate = 0.25});
  EXPECT_GT(part.curves[1].mean_error_share, 0.0);
  EXPECT_LT(part.curves[1].mean_error_share, 0.05);
  EXPECT_GT(part.curves[1].error[100], 0.0);
  EXPECT_THROW(compute_curves(s, {.shards_rate = 1.5}), UserError);
}

}  // namespace
}  // namespace assay::replay
