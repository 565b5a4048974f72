#include "bench/stats.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "kernels/base/rng.h"

namespace assay::stats {
namespace {

TEST(Elementary, MatchesTheMathLibraryToTwoUlp) {
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    const double x = (rng.uniform() - 0.5) * 1400.0;
    EXPECT_NEAR(exp(x) / std::exp(x), 1.0, 5e-16) << x;
    const double y = std::exp(x / 2.0) * (1.0 + rng.uniform());
    EXPECT_NEAR(ln(y), std::log(y), 4e-16 * std::fabs(std::log(y)) + 1e-18) << y;
  }
  EXPECT_EQ(ln(1.0), 0.0);
  EXPECT_EQ(exp(0.0), 1.0);
  EXPECT_TRUE(std::isnan(ln(-1.0)));
  EXPECT_TRUE(std::isinf(ln(0.0)));
  EXPECT_TRUE(std::isinf(exp(1000.0)));
}

TEST(Elementary, QuantilesMatchPublishedTables) {
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-12);
  EXPECT_NEAR(normal_quantile(0.8), 0.8416212335729143, 1e-12);
  EXPECT_NEAR(normal_cdf(-6.0), 9.865876450376981e-10, 1e-20);
  EXPECT_NEAR(normal_cdf(4.999), 0.9999997118579855, 1e-13);
  EXPECT_NEAR(student_quantile(0.975, 1), 12.706204736432095, 1e-8);
  EXPECT_NEAR(student_quantile(0.975, 2), 4.302652729911275, 1e-9);
  EXPECT_NEAR(student_quantile(0.975, 6), 2.446911851144969, 1e-10);
  EXPECT_NEAR(student_quantile(0.975, 10), 2.228138851964939, 1e-10);
  EXPECT_NEAR(student_quantile(0.8, 10), 0.879057828550593, 1e-10);
  EXPECT_NEAR(student_quantile(0.975, 21), 2.079613844727662, 1e-10);
}

TEST(SignedRank, CutsAndLevelsAreThoseOfTheExactTable) {
  EXPECT_EQ(signed_rank_cut(8, 0.025), 3);
  EXPECT_DOUBLE_EQ(1.0 - 2.0 * signed_rank_tail(8, 3), 0.9609375);
  EXPECT_EQ(signed_rank_cut(8, 0.0125), 2);
  EXPECT_DOUBLE_EQ(1.0 - 2.0 * signed_rank_tail(8, 2), 0.9765625);
  EXPECT_EQ(signed_rank_cut(12, 0.025), 13);
  EXPECT_NEAR(1.0 - 2.0 * signed_rank_tail(12, 13), 0.9575, 5e-5);
  EXPECT_EQ(signed_rank_cut(12, 0.0125), 10);
  EXPECT_NEAR(1.0 - 2.0 * signed_rank_tail(12, 10), 0.9790, 5e-5);
  EXPECT_EQ(signed_rank_cut(5, 0.025), -1);  // 1/32 is already too much
  EXPECT_EQ(signed_rank_cut(6, 0.025), 0);
}

TEST(SignedRank, IntervalIsTheOrderStatisticOfWalshAverages) {
  const std::vector<double> d{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_DOUBLE_EQ(hodges_lehmann(d), 4.5);
  const auto interval = signed_rank_interval(d, 0.05);
  ASSERT_TRUE(interval);
  // Walsh averages of 1..8 in order: 1, 1.5, 2, 2, 2.5, ..: the fourth is 2, the fourth from the end 7.
  EXPECT_DOUBLE_EQ(interval->interval.low, 2.0);
  EXPECT_DOUBLE_EQ(interval->interval.high, 7.0);
  EXPECT_FALSE(signed_rank_interval(std::vector<double>{1, 2, 3, 4}, 0.05));
}

TEST(SignedRank, LowerEndAboveZeroAndPValueAreOneStatement) {
  Rng rng(11);
  for (int i = 0; i < 400; ++i) {
    std::vector<double> d(8);
    for (double& v : d) v = rng.normal() + 0.8;
    const auto interval = signed_rank_interval(d, 0.05);
    EXPECT_EQ(interval->interval.low > 0.0, signed_rank_p_above(d, 0.0) <= 0.025);
    EXPECT_EQ(interval->interval.high < 0.0, signed_rank_p_below(d, 0.0) <= 0.025);
  }
}

TEST(SignedRank, ZerosCountAgainstTheClaim) {
  EXPECT_DOUBLE_EQ(signed_rank_p_above(std::vector<double>(8, 0.0), 0.0), 1.0);
  EXPECT_DOUBLE_EQ(signed_rank_p_above(std::vector<double>(8, 1.0), 0.0), 1.0 / 256.0);
}

TEST(PairUp, RefusesMissingDoubleAndNonPositiveValues) {
  const std::vector<TierWeight> tiers{{"a", 1.0, true}};
  const std::vector<Row> good{{0, 0, 'X', "a", 2.0}, {0, 1, 'Y', "a", 3.0}};
  const Pairs p = pair_up(good, tiers);
  EXPECT_DOUBLE_EQ(p.d[0], ln(1.5));
  EXPECT_EQ(p.o[0], 1);
  EXPECT_THROW(pair_up(std::vector<Row>{good[0]}, tiers), std::invalid_argument);
  EXPECT_THROW(pair_up(std::vector<Row>{good[0], good[1], good[1]}, tiers), std::invalid_argument);
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(pair_up(std::vector<Row>{good[0], {0, 1, 'Y', "a", bad}}, tiers),
                 std::invalid_argument);
  }
  EXPECT_THROW(pair_up(std::vector<Row>{good[0], {0, 1, 'Y', "b", 1.0}}, tiers),
               std::invalid_argument);
}

TEST(PairUp, MeanRatioIsGeometricOverTiers) {
  const std::vector<TierWeight> tiers{{"a", 0.5, true}, {"b", 0.5, true}};
  const std::vector<Row> rows{
      {3, 4, 'Y', "a", 4.0}, {3, 4, 'Y', "b", 1.0}, {3, 5, 'X', "a", 1.0}, {3, 5, 'X', "b", 1.0}};
  const Pairs p = pair_up(rows, tiers);
  EXPECT_NEAR(exp(p.d[0]), 2.0, 1e-15);
  EXPECT_EQ(p.o[0], -1);
}

TEST(OrderCheck, SeesWhatTheOrderDoesAndTheCrossoverRemovesIt) {
  // True effect 0.02, first place worth 0.05 to whichever arm has it; tiny distinct noise.
  std::vector<double> d;
  std::vector<int> o;
  for (int i = 0; i < 12; ++i) {
    o.push_back(i % 2 == 0 ? 1 : -1);
    d.push_back(0.02 + 0.05 * o.back() + 1e-4 * i);
  }
  const OrderCheck check = order_check(d, o);
  EXPECT_NEAR(check.beta, 0.05, 1e-3);
  EXPECT_GT(std::fabs(*check.t_beta), kOrderAlarm);
  const auto crossover = crossover_interval(d, o, 0.05);
  EXPECT_NEAR(crossover->estimate, 0.0205, 1e-3);
  EXPECT_GT(crossover->interval.low, 0.019);
  const auto t = order_adjusted_t(d, o, 0.05);
  EXPECT_GT(t->low, 0.019);
  EXPECT_LT(t->high, 0.022);
}

TEST(Crossover, BoundsAreThoseOfMannWhitney) {
  // 6 against 6, two-sided 5 %: the classical critical value is 5.
  std::vector<double> d;
  std::vector<int> o;
  for (int i = 0; i < 12; ++i) {
    d.push_back(i);
    o.push_back(i < 6 ? 1 : -1);
  }
  EXPECT_NEAR(crossover_interval(d, o, 0.05)->level, 0.9588744588744589, 1e-12);
}

TEST(Randomisation, CountsBalancedOrdersExactly) {
  // All differences positive when A is first and negative when not: an order effect only. The observed order gives 0.
  const std::vector<double> d{1, -2, 3, -4};
  const std::vector<int> o{1, -1, 1, -1};
  // Second over first is always positive with ranks 1..4: |sum o r| over the 6 balanced orders is 4,2,0,0,2,4; observed 2.
  EXPECT_DOUBLE_EQ(randomisation_p(d, o, 1), 4.0 / 6.0);
  EXPECT_THROW(randomisation_p(d, std::vector<int>{1, 1, 1, -1}, 1), std::invalid_argument);
}

TEST(Randomisation, DrawsAgreeWithTheExactCount) {
  Rng rng(5);
  std::vector<double> d(16);
  for (double& v : d) v = rng.normal() + 0.5;
  const auto o = balanced_order(16, 9);
  const double exact = randomisation_p(d, o, 1);
  d.push_back(0.01);
  d.push_back(-0.01);
  auto longer = o;
  longer.push_back(1);
  longer.push_back(-1);
  EXPECT_NEAR(randomisation_p(d, longer, 1), exact, 0.05);
}

TEST(BalancedOrder, IsBalancedAndFollowsTheSeed) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto o = balanced_order(12, seed);
    int sum = 0;
    for (const int sign : o) sum += sign;
    EXPECT_EQ(sum, 0);
    EXPECT_EQ(o, balanced_order(12, seed));
  }
  EXPECT_NE(balanced_order(12, 1), balanced_order(12, 2));
  EXPECT_THROW(balanced_order(7, 1), std::invalid_argument);
}

TEST(Power, FollowsTheFormula) {
  EXPECT_NEAR(*minimum_detectable_effect(12, 0.05, 0.01),
              (2.228138851964939 + 0.879057828550593) * 0.01 / std::sqrt(11.46),
              1e-12);
  EXPECT_FALSE(minimum_detectable_effect(2, 0.05, 0.01));
  EXPECT_EQ(pairs_needed(0.015, 0.05, 0.01), 8);
  EXPECT_FALSE(pairs_needed(0.001, 0.05, 0.05));
}

TEST(Holm, StepsDownAndKeepsTheInputOrder) {
  const auto h = holm(std::vector<double>{0.04, 0.01, 0.03}, 0.05);
  EXPECT_DOUBLE_EQ(h.adjusted[1], 0.03);
  EXPECT_DOUBLE_EQ(h.adjusted[2], 0.06);
  EXPECT_DOUBLE_EQ(h.adjusted[0], 0.06);  // monotone: not 0.04
  EXPECT_EQ(h.rank, (std::vector<int>{3, 1, 2}));
  EXPECT_EQ(h.reject, (std::vector<bool>{false, true, false}));
}

TEST(Holm, TwelveMembersAtEightPairsCanNeverReject) {
  std::vector<double> p(12, 2.0 / 256.0);
  for (const bool r : holm(p, 0.05).reject) EXPECT_FALSE(r);
}

TEST(TierGuard, FailsUnprovenAndPasses) {
  const std::vector<double> same(12, 0.001);
  const std::vector<double> bad(12, ln(0.97));
  std::vector<double> wide;
  for (int i = 0; i < 12; ++i) wide.push_back(i % 2 == 0 ? 0.08 : -0.07);
  const auto g = tier_guard({same, bad, wide}, 0.98, 0.05);
  EXPECT_EQ(g[0].guard, Guard::kPass);
  EXPECT_EQ(g[1].guard, Guard::kFail);
  EXPECT_EQ(g[2].guard, Guard::kUnproven);
  EXPECT_GE(*g[0].lower, 0.98);
  EXPECT_LT(*g[2].lower, 0.98);
}

TEST(TierGuard, BoundAndVerdictAreOneStatement) {
  Rng rng(17);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::vector<double>> tiers(3, std::vector<double>(8));
    for (auto& t : tiers) {
      const double shift = rng.uniform() * 0.04;
      for (double& v : t) v = shift + 0.02 * rng.normal();
    }
    for (const auto& r : tier_guard(tiers, 0.98, 0.05)) {
      if (r.guard == Guard::kFail) continue;
      EXPECT_EQ(r.guard == Guard::kPass, r.lower && *r.lower > 0.98);
    }
  }
}

TEST(TierGuard, NanIsNeverAPass) {
  EXPECT_NE(tier_guard({std::vector<double>(12, NAN)}, 0.98, 0.05)[0].guard, Guard::kPass);
}

TEST(Equivalence, NeedsTheWholeIntervalInside) {
  std::vector<double> d;
  for (int i = 0; i < 12; ++i) d.push_back(0.0005 * (i % 3 - 1));
  EXPECT_TRUE(equivalent(d, 0.005));
  for (double& v : d) v += 0.0049;
  EXPECT_FALSE(equivalent(d, 0.005));
  EXPECT_FALSE(equivalent(std::vector<double>{0.0, 0.0}, 0.005));
}

TEST(EProcess, StartsFairAndGrowsWithTheEffect) {
  const auto none = e_process(std::vector<double>{0.0, 0.0}, 0.01);
  EXPECT_DOUBLE_EQ(none[1], 1.0);
  const auto strong = e_process(std::vector<double>(24, 0.03), 0.01);
  EXPECT_GT(strong.back(), 20.0);
  EXPECT_TRUE(std::isfinite(e_process(std::vector<double>(24, 1e3), 1e-3).back()));
}

TEST(EProcess, RarelyCrossesTwentyUnderTheNull) {
  Rng rng(23);
  int crossed = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> d(24);
    for (double& v : d) v = rng.normal() * (rng.uniform() < 0.1 ? 5.0 : 1.0);
    for (const double e : e_process(d, 1.0)) {
      if (e >= 20.0) {
        ++crossed;
        break;
      }
    }
  }
  EXPECT_LE(crossed, 123);  // 5 % of 2,000 plus 2.4 standard errors
}

TEST(EProcess, OrderFreeSumsPairOneOfEachOrder) {
  const std::vector<double> d{1, 2, 4, 8};
  EXPECT_EQ(order_free_sums(d, std::vector<int>{1, 1, -1, -1}), (std::vector<double>{5, 10}));
  EXPECT_EQ(order_free_sums(d, std::vector<int>{1, -1, 1, 1}), (std::vector<double>{3}));
}

TEST(Williams, EveryPairOfNeighboursOccursEquallyOften) {
  for (const int arms : {2, 3, 4, 5, 6, 7}) {
    std::vector<std::vector<int>> follows(static_cast<std::size_t>(arms),
                                          std::vector<int>(static_cast<std::size_t>(arms), 0));
    const auto rows = williams_orders(arms);
    EXPECT_EQ(rows.size(), static_cast<std::size_t>(arms % 2 == 0 ? arms : 2 * arms));
    for (const auto& row : rows) {
      EXPECT_EQ(std::set<int>(row.begin(), row.end()).size(), static_cast<std::size_t>(arms));
      for (std::size_t i = 1; i < row.size(); ++i)
        ++follows[static_cast<std::size_t>(row[i - 1])][static_cast<std::size_t>(row[i])];
    }
    std::set<int> counts;
    for (int a = 0; a < arms; ++a) {
      for (int b = 0; b < arms; ++b) {
        if (a != b)
          counts.insert(follows[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]);
      }
    }
    EXPECT_EQ(counts.size(), 1U) << arms;
  }
}

TEST(DropOne, KeepsContributorsOnly) {
  std::vector<double> useful;
  std::vector<double> idle;
  for (int i = 0; i < 12; ++i) {
    useful.push_back(0.02 + 0.001 * (i % 3));
    idle.push_back(0.003 * (i % 2 == 0 ? 1 : -1));
  }
  const auto c = drop_one({useful, idle}, 0.05);
  EXPECT_TRUE(c[0].keep);
  EXPECT_GT(*c[0].lower, 0.0);
  EXPECT_FALSE(c[1].keep);
  EXPECT_LE(*c[1].lower, 0.0);
}

TEST(Bootstrap, FourPairsGiveTheWholeRange) {
  const std::vector<double> d{0.01, 0.02, 0.03, 0.04};
  const auto b = bootstrap_median(d, 0.05, 1);
  EXPECT_DOUBLE_EQ(b.percentile.low, 0.01);
  EXPECT_DOUBLE_EQ(b.percentile.high, 0.04);
  EXPECT_NEAR(b.coverage_percentile, 0.875, 0.01);
}

TEST(Bootstrap, LabelledCoverageIsWhatSimulationGives) {
  for (const int n : {4, 8, 12}) {
    constexpr int kRepetitions = 2000;
    Rng rng(static_cast<std::uint64_t>(n));
    int percentile = 0;
    int bca = 0;
    for (int r = 0; r < kRepetitions; ++r) {
      std::vector<double> d(static_cast<std::size_t>(n));
      for (double& v : d) v = rng.normal();
      const auto b = bootstrap_median(d, 0.05, static_cast<std::uint64_t>(r) + 1, 400);
      percentile += b.percentile.low <= 0.0 && b.percentile.high >= 0.0 ? 1 : 0;
      bca += b.bca.low <= 0.0 && b.bca.high >= 0.0 ? 1 : 0;
    }
    // Three standard errors of 2,000 repetitions.
    EXPECT_NEAR(static_cast<double>(percentile) / kRepetitions, bootstrap_coverage(n).first, 0.02)
        << n;
    EXPECT_NEAR(static_cast<double>(bca) / kRepetitions, bootstrap_coverage(n).second, 0.02) << n;
  }
}

}  // namespace
}  // namespace assay::stats
