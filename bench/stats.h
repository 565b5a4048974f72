// The statistics core: from (pair, slot, arm, tier, value) rows to an estimate, an exact interval and its checks.
//
// Pure arithmetic. Arms are coded X and Y here; nothing in this file knows which one is hoped for. Every result has the
// same bits on every compiler: only + - * / and sqrt (correctly rounded by IEEE 754), integer counting, our own ln and exp,
// and the house generator from a seed that the caller stores.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace assay::stats {

// --- elementary functions, the same bits everywhere ---
double ln(double x);                        // x > 0; ln(0) = -inf, negative or NaN -> NaN
double exp(double x);                       // overflows to +inf, underflows to 0
double normal_cdf(double z);                // absolute error below 1e-14
double normal_quantile(double p);           // 0 < p < 1
double student_cdf(double t, int df);       // df >= 1
double student_quantile(double p, int df);  // 0 < p < 1, df >= 1

// Median of a copy; the mean of the two middle values when the count is even. NaN for an empty span.
double median(std::span<const double> values);
double mean(std::span<const double> values);
// Sample standard deviation (n - 1). Nothing for fewer than two values.
std::optional<double> sample_sd(std::span<const double> values);

// --- rows to pairs ---
struct Row {
  int pair = 0;
  int slot = 0;    // run order in the whole sitting
  char arm = 'X';  // 'X' or 'Y'; the ratio is Y over X
  std::string tier;
  double value = 0.0;  // throughput, or 1/time: larger is better
};
struct TierWeight {
  std::string id;
  double weight = 1.0;  // weights are used as given; the plan makes them sum to 1
  bool gated = true;
};
struct Pairs {
  std::vector<int> pair;                     // pair ids, ascending
  std::vector<double> d;                     // sum over tiers of weight * ln(Y / X)
  std::vector<int> o;                        // +1 when X ran first, else -1
  std::vector<std::vector<double>> tier_ln;  // [tier][pair] ln(Y / X)
};
// std::invalid_argument naming pair, arm and tier when a value is missing, double, not positive or not finite.
Pairs pair_up(std::span<const Row> rows, std::span<const TierWeight> tiers);

// --- exact signed-rank ---
struct Interval {
  double low = 0.0;
  double high = 0.0;
};
constexpr int kMaxPairs = 60;  // counts stay exact in 64 bits
// P(signed-rank statistic <= c) for n pairs, symmetric null, by counting subsets.
double signed_rank_tail(int n, int c);
// The largest c with P(<= c) <= tail; -1 when there is none (n too small).
int signed_rank_cut(int n, double tail);
// All (d_i + d_j) / 2, i <= j, ascending.
std::vector<double> walsh_averages(std::span<const double> d);
// [W_(c+1), W_(M-c)] with its exact two-sided level; nothing when n is too small for alpha.
struct RankInterval {
  Interval interval;
  double level = 0.0;  // 1 - 2 P(<= c)
  int cut = 0;
};
std::optional<RankInterval> signed_rank_interval(std::span<const double> d, double alpha);
double hodges_lehmann(std::span<const double> d);
// One-sided exact p of "centre <= shift" against "centre > shift". Zero differences count against the claim.
double signed_rank_p_above(std::span<const double> d, double shift);
double signed_rank_p_below(std::span<const double> d, double shift);
double signed_rank_p_two_sided(std::span<const double> d);

// --- order check ---
struct OrderCheck {
  double beta = 0.0;             // (1/n) sum o_i d_i: half the difference between the two orders
  std::optional<double> s;       // residual sd, n - 2 degrees of freedom; nothing for n < 3
  std::optional<double> t_beta;  // nothing when s is missing or 0
};
OrderCheck order_check(std::span<const double> d, std::span<const int> o);
constexpr double kOrderAlarm = 2.5;  // |t_beta| above it: the crossover interval must agree
// Hodges-Lehmann over one pair of each order, Mann-Whitney bounds: free of an additive order effect.
struct Crossover {
  double estimate = 0.0;
  Interval interval;
  double level = 0.0;
};
std::optional<Crossover> crossover_interval(std::span<const double> d,
                                            std::span<const int> o,
                                            double alpha);
// mean +- t(1 - alpha/2, n - 2) s / sqrt(n), the order effect removed. Nothing for n < 3.
std::optional<Interval> order_adjusted_t(std::span<const double> d,
                                         std::span<const int> o,
                                         double alpha);

// --- bootstrap of the paired median: a legacy column, shown with the coverage it was measured to have ---
struct Bootstrap {
  Interval percentile;
  Interval bca;
  double coverage_percentile =
      0.0;  // measured, symmetric noise, this n and alpha 0.05 (see bootstrap_coverage)
  double coverage_bca = 0.0;
};
constexpr int kBootstrapDraws = 2000;
Bootstrap bootstrap_median(std::span<const double> d,
                           double alpha,
                           std::uint64_t seed,
                           int draws = kBootstrapDraws);
// Coverage of the two intervals at nominal 95 %, normal noise; {percentile, BCa}. Interpolated between measured sizes.
std::pair<double, double> bootstrap_coverage(int n);

// --- randomisation ---
// Two-sided rank randomisation p for the sharp null over balanced orders: all C(n, n/2) up to n = 16, else 20,000 draws from
// the seed (the observed order counted once). n must be even and o balanced, else std::invalid_argument.
double randomisation_p(std::span<const double> d, std::span<const int> o, std::uint64_t seed);
// Balanced order: n/2 of +1 and of -1, shuffled by the seed; n even.
std::vector<int> balanced_order(int n, std::uint64_t seed);

// --- power ---
// (t(1 - alpha/2, n - 2) + t(0.8, n - 2)) s_AA / sqrt(0.955 n): the effect (log scale) found with 80 % power.
std::optional<double> minimum_detectable_effect(int n, double alpha, double s_aa);
// Smallest even n in [8, 60] whose MDE is at most `effect`; nothing when 60 pairs do not suffice.
std::optional<int> pairs_needed(double effect, double alpha, double s_aa);

// --- families ---
struct Holm {
  std::vector<double> adjusted;  // same order as the input
  std::vector<int> rank;         // 1 = smallest p
  std::vector<bool> reject;
};
Holm holm(std::span<const double> p, double alpha);

// --- tiers ---
enum class Guard : std::uint8_t { kPass, kUnproven, kFail };
const char* to_string(Guard guard);  // "PASS", "UNPROVEN", "FAIL"
struct TierResult {
  double median_ratio = 0.0;
  std::optional<double>
      lower;  // one-sided Holm-adjusted lower bound of the ratio; nothing when n is too small
  Guard guard = Guard::kUnproven;
};
// FAIL: a median below `floor`. UNPROVEN: the bound is below it. alpha is the one-sided family level over all tiers.
std::vector<TierResult> tier_guard(const std::vector<std::vector<double>>& tier_ln,
                                   double floor,
                                   double alpha);

// 90 % signed-rank interval inside +-ln(1 + margin). False when n is too small.
bool equivalent(std::span<const double> d, double margin);

// --- sequential extension ---
// Mean over lambda in {0.3, 0.6, 1, 1.5} and both signs of prod exp(+-lambda d/s0) / cosh(lambda d/s0), after each pair.
// Ville: P(ever >= 20) <= 5 % whenever each d is symmetric about 0, whatever s0 > 0 is.
std::vector<double> e_process(std::span<const double> d, double s0);
// Sums of one AB and one BA neighbour, for feeding the e-process under drift: d in pairs of opposite order, in sequence.
std::vector<double> order_free_sums(std::span<const double> d, std::span<const int> o);

// --- stacks ---
// Latin orders balanced for first-order carry-over: arms rows for even `arms`, 2 * arms rows for odd. Each row is an order.
std::vector<std::vector<int>> williams_orders(int arms);
// Every member's own contribution c_j = ln(S / S without j) per round, kept when its Holm-adjusted lower end is above 0.
struct Contribution {
  double estimate = 0.0;
  std::optional<double> lower;  // at the member's Holm step
  bool keep = false;
};
std::vector<Contribution> drop_one(const std::vector<std::vector<double>>& rounds_by_member,
                                   double alpha);

}  // namespace assay::stats
