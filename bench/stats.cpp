#include "bench/stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

#include "kernels/base/rng.h"

namespace assay::stats {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// ln 2 in two parts: the high one has 33 significant bits, so k * kLn2High is exact for every exponent k.
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;

double scale_by_power_of_two(double x, int k) {
  const auto factor = [](int e) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52);
  };
  if (k > 1023) return x * factor(1023) * factor(std::min(k - 1023, 1023));
  if (k < -1022) return x * factor(-1022) * factor(std::max(k + 1022, -1022));
  return x * factor(k);
}

// Three halvings bring any argument to |x| <= 0.2, where 12 terms are beyond double precision.
double arc_tangent(double x) {
  for (int i = 0; i < 3; ++i) x = x / (1.0 + std::sqrt(1.0 + x * x));
  const double z = x * x;
  double sum = 0.0;
  for (int k = 25; k >= 1; k -= 2) sum = 1.0 / k - z * sum;
  return 8.0 * x * sum;
}

// Monotone bisection: `f` rises, the answer lies in [low, high]. 200 halvings end at neighbouring doubles.
template <class F>
double bisect(double low, double high, double target, const F& f) {
  for (int i = 0; i < 200; ++i) {
    const double middle = low + (high - low) / 2.0;
    if (middle == low || middle == high) break;
    (f(middle) < target ? low : high) = middle;
  }
  return low + (high - low) / 2.0;
}

void require(bool good, const std::string& what) {
  if (!good) throw std::invalid_argument(what);
}

// counts[s] = number of subsets of {1..n} with sum s.
std::vector<std::uint64_t> subset_sums(int n) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(n * (n + 1) / 2 + 1), 0);
  counts[0] = 1;
  for (int k = 1; k <= n; ++k) {
    for (int s = k * (k + 1) / 2; s >= k; --s)
      counts[static_cast<std::size_t>(s)] += counts[static_cast<std::size_t>(s - k)];
  }
  return counts;
}

// counts[u] = number of arrangements of a + b values with Mann-Whitney statistic u.
std::vector<std::uint64_t> mann_whitney_counts(int a, int b) {
  // Partitions of u into at most a parts of size at most b: table[j] over the parts of size at most i.
  const auto size = static_cast<std::size_t>(a * b + 1);
  std::vector<std::vector<std::uint64_t>> ways(static_cast<std::size_t>(a + 1),
                                               std::vector<std::uint64_t>(size, 0));
  ways[0][0] = 1;
  for (int part = 1; part <= b; ++part) {
    for (int j = 1; j <= a; ++j) {
      for (std::size_t u = static_cast<std::size_t>(part); u < size; ++u) {
        ways[static_cast<std::size_t>(j)][u] +=
            ways[static_cast<std::size_t>(j - 1)][u - static_cast<std::size_t>(part)];
      }
    }
  }
  std::vector<std::uint64_t> counts(size, 0);
  for (const auto& w : ways) {
    for (std::size_t u = 0; u < size; ++u) counts[u] += w[u];
  }
  return counts;
}

std::vector<double> sorted(std::span<const double> values) {
  std::vector<double> copy(values.begin(), values.end());
  std::sort(copy.begin(), copy.end());
  return copy;
}

double median_of_sorted(const std::vector<double>& v) {
  const std::size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2.0;
}

void require_balanced(std::span<const double> d, std::span<const int> o) {
  require(d.size() == o.size(), "one order sign per pair is needed");
  require(d.size() % 2 == 0, "a balanced order needs an even number of pairs");
  int sum = 0;
  for (const int sign : o) {
    require(sign == 1 || sign == -1, "order signs are +1 and -1");
    sum += sign;
  }
  require(sum == 0, "the order is not balanced");
}

template <class T>
void shuffle(std::vector<T>& v, Rng& rng) {
  for (std::size_t i = v.size(); i > 1; --i) std::swap(v[i - 1], v[rng.below(i)]);
}

// |x| + ln(1 + exp(-2|x|)) - ln 2: the logarithm of cosh without overflow.
double ln_cosh(double x) {
  const double a = std::fabs(x);
  return a + ln(1.0 + exp(-2.0 * a)) - (kLn2High + kLn2Low);
}

}  // namespace

// The algorithms of ln and exp are those of FreeBSD's msun (public, Sun 1993): argument reduction, then a polynomial.
double ln(double x) {
  if (x == 0.0) return -kInfinity;
  if (!(x > 0.0)) return kNaN;
  if (x == kInfinity) return kInfinity;
  int k = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    k = -54;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  k += static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++k;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even = w * (3.999999999940941908e-01 +
                           w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd = z * (6.666666666666735130e-01 +
                          w * (2.857142874366239149e-01 +
                               w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double r = even + odd;
  const double half_square = 0.5 * f * f;
  const double dk = k;
  return dk * kLn2High - ((half_square - (s * (half_square + r) + dk * kLn2Low)) - f);
}

double exp(double x) {
  if (std::isnan(x)) return kNaN;
  if (x > 709.782712893384) return kInfinity;
  if (x < -745.1332191019412) return 0.0;
  const int k = static_cast<int>(x * 1.44269504088896338700 + (x < 0.0 ? -0.5 : 0.5));
  const double high = x - k * kLn2High;
  const double low = k * kLn2Low;
  const double r = high - low;
  const double t = r * r;
  const double c =
      r - t * (1.66666666666666019037e-01 +
               t * (-2.77777777770155933842e-03 +
                    t * (6.61375632143793436117e-05 +
                         t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
  return scale_by_power_of_two(1.0 - ((low - (r * c) / (2.0 - c)) - high), k);
}

double normal_cdf(double z) {
  if (std::isnan(z)) return kNaN;
  if (z > 38.0) return 1.0;
  if (z < -38.0) return 0.0;
  const double density = exp(-0.5 * z * z) * 0.3989422804014327;
  const double a = std::fabs(z);
  if (a < 5.0) {
    // Marsaglia's series: 1/2 + density * (z + z^3/3 + z^5/15 + ..), all terms of one sign.
    double term = z;
    double sum = z;
    for (int k = 3; k < 400; k += 2) {
      term *= z * z / k;
      const double next = sum + term;
      if (next == sum) break;
      sum = next;
    }
    return 0.5 + density * sum;
  }
  // Continued fraction of the upper tail (Laplace), evaluated from the inside.
  double fraction = a;
  for (int k = 120; k >= 1; --k) fraction = a + k / fraction;
  const double tail = density / fraction;
  return z > 0.0 ? 1.0 - tail : tail;
}

double normal_quantile(double p) {
  require(p > 0.0 && p < 1.0, "normal_quantile needs 0 < p < 1");
  return bisect(-39.0, 39.0, p, [](double z) { return normal_cdf(z); });
}

// Abramowitz and Stegun 26.7.3 and 26.7.4: finite sums for integer degrees of freedom.
double student_cdf(double t, int df) {
  require(df >= 1, "student_cdf needs df >= 1");
  if (std::isnan(t)) return kNaN;
  const double cos2 = df / (df + t * t);
  const double sine = t / std::sqrt(df + t * t);
  double a = 0.0;  // P(|T| <= |t|) with the sign of t
  if (df % 2 == 0) {
    double term = 1.0;
    double sum = 1.0;
    for (int k = 2; k <= df - 2; k += 2) {
      term *= cos2 * (k - 1) / k;
      sum += term;
    }
    a = sine * sum;
  } else {
    double sum = 0.0;
    if (df > 1) {
      double term = std::sqrt(cos2);
      sum = term;
      for (int k = 3; k <= df - 2; k += 2) {
        term *= cos2 * (k - 1) / k;
        sum += term;
      }
    }
    a = 0.6366197723675814 * (arc_tangent(t / std::sqrt(static_cast<double>(df))) + sine * sum);
  }
  return 0.5 + 0.5 * a;
}

double student_quantile(double p, int df) {
  require(p > 0.0 && p < 1.0, "student_quantile needs 0 < p < 1");
  return bisect(-1e9, 1e9, p, [df](double t) { return student_cdf(t, df); });
}

double median(std::span<const double> values) {
  return values.empty() ? kNaN : median_of_sorted(sorted(values));
}

double mean(std::span<const double> values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

std::optional<double> sample_sd(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  const double m = mean(values);
  double sum = 0.0;
  for (const double v : values) sum += (v - m) * (v - m);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

Pairs pair_up(std::span<const Row> rows, std::span<const TierWeight> tiers) {
  struct Cell {
    std::optional<double> value;
    int slot = 0;
  };
  std::map<int, std::vector<Cell>> table;  // per pair: X tiers, then Y tiers
  const std::size_t k = tiers.size();
  require(k > 0, "no tiers");
  for (const Row& r : rows) {
    const auto at = std::find_if(
        tiers.begin(), tiers.end(), [&](const TierWeight& t) { return t.id == r.tier; });
    const std::string where =
        "pair " + std::to_string(r.pair) + " arm " + r.arm + " tier " + r.tier;
    require(at != tiers.end(), where + ": no such tier in the plan");
    require(r.arm == 'X' || r.arm == 'Y', where + ": arms are X and Y");
    require(r.value > 0.0 && r.value < kInfinity, where + ": the value is not a positive number");
    auto& cells = table.try_emplace(r.pair, 2 * k).first->second;
    Cell& cell = cells[static_cast<std::size_t>(at - tiers.begin()) + (r.arm == 'Y' ? k : 0)];
    require(!cell.value, where + ": given twice");
    cell = {r.value, r.slot};
  }
  Pairs out;
  out.tier_ln.resize(k);
  for (const auto& [pair, cells] : table) {
    double d = 0.0;
    for (std::size_t t = 0; t < k; ++t) {
      for (const std::size_t side : {t, t + k}) {
        require(cells[side].value.has_value(),
                "pair " + std::to_string(pair) + " arm " + (side < k ? 'X' : 'Y') + " tier " +
                    tiers[t].id + ": missing");
      }
      const double r = ln(*cells[t + k].value / *cells[t].value);
      out.tier_ln[t].push_back(r);
      d += tiers[t].weight * r;
    }
    require(cells[0].slot != cells[k].slot,
            "pair " + std::to_string(pair) + ": both arms have one slot");
    out.pair.push_back(pair);
    out.d.push_back(d);
    out.o.push_back(cells[0].slot < cells[k].slot ? 1 : -1);
  }
  return out;
}

double signed_rank_tail(int n, int c) {
  require(n >= 1 && n <= kMaxPairs, "signed rank: 1 to 60 pairs");
  if (c < 0) return 0.0;
  const auto counts = subset_sums(n);
  std::uint64_t sum = 0;
  for (std::size_t s = 0; s < counts.size() && s <= static_cast<std::size_t>(c); ++s)
    sum += counts[s];
  return static_cast<double>(sum) / static_cast<double>(std::uint64_t{1} << n);
}

int signed_rank_cut(int n, double tail) {
  require(n >= 1 && n <= kMaxPairs, "signed rank: 1 to 60 pairs");
  const auto counts = subset_sums(n);
  const auto total = static_cast<double>(std::uint64_t{1} << n);
  std::uint64_t sum = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    sum += counts[s];
    if (static_cast<double>(sum) / total > tail) return static_cast<int>(s) - 1;
  }
  return static_cast<int>(counts.size()) - 1;
}

std::vector<double> walsh_averages(std::span<const double> d) {
  std::vector<double> w;
  w.reserve(d.size() * (d.size() + 1) / 2);
  for (std::size_t i = 0; i < d.size(); ++i) {
    for (std::size_t j = i; j < d.size(); ++j) w.push_back((d[i] + d[j]) / 2.0);
  }
  std::sort(w.begin(), w.end());
  return w;
}

std::optional<RankInterval> signed_rank_interval(std::span<const double> d, double alpha) {
  const int n = static_cast<int>(d.size());
  if (n < 1) return std::nullopt;
  const int cut = signed_rank_cut(n, alpha / 2.0);
  if (cut < 0) return std::nullopt;
  const auto w = walsh_averages(d);
  const auto c = static_cast<std::size_t>(cut);
  return RankInterval{{w[c], w[w.size() - 1 - c]}, 1.0 - 2.0 * signed_rank_tail(n, cut), cut};
}

double hodges_lehmann(std::span<const double> d) {
  return d.empty() ? kNaN : median_of_sorted(walsh_averages(d));
}

double signed_rank_p_above(std::span<const double> d, double shift) {
  if (d.empty()) return 1.0;
  int not_above = 0;
  for (const double w : walsh_averages(d)) not_above += w > shift ? 0 : 1;
  return signed_rank_tail(static_cast<int>(d.size()), not_above);
}

double signed_rank_p_below(std::span<const double> d, double shift) {
  if (d.empty()) return 1.0;
  int not_below = 0;
  for (const double w : walsh_averages(d)) not_below += w < shift ? 0 : 1;
  return signed_rank_tail(static_cast<int>(d.size()), not_below);
}

double signed_rank_p_two_sided(std::span<const double> d) {
  return std::min(1.0, 2.0 * std::min(signed_rank_p_above(d, 0.0), signed_rank_p_below(d, 0.0)));
}

OrderCheck order_check(std::span<const double> d, std::span<const int> o) {
  require(d.size() == o.size() && !d.empty(), "one order sign per pair is needed");
  OrderCheck out;
  const auto n = static_cast<double>(d.size());
  for (std::size_t i = 0; i < d.size(); ++i) out.beta += o[i] * d[i];
  out.beta /= n;
  if (d.size() < 3) return out;
  const double m = mean(d);
  double sum = 0.0;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double r = d[i] - m - out.beta * o[i];
    sum += r * r;
  }
  out.s = std::sqrt(sum / (n - 2.0));
  if (*out.s > 0.0) out.t_beta = out.beta * std::sqrt(n) / *out.s;
  return out;
}

std::optional<Crossover> crossover_interval(std::span<const double> d,
                                            std::span<const int> o,
                                            double alpha) {
  require(d.size() == o.size(), "one order sign per pair is needed");
  std::vector<double> first;
  std::vector<double> second;
  for (std::size_t i = 0; i < d.size(); ++i) (o[i] > 0 ? first : second).push_back(d[i]);
  if (first.empty() || second.empty() || d.size() > kMaxPairs) return std::nullopt;
  std::vector<double> v;
  for (const double a : first) {
    for (const double b : second) v.push_back((a + b) / 2.0);
  }
  std::sort(v.begin(), v.end());
  const auto counts =
      mann_whitney_counts(static_cast<int>(first.size()), static_cast<int>(second.size()));
  std::uint64_t total = 0;
  for (const auto c : counts) total += c;
  std::uint64_t sum = 0;
  std::uint64_t kept = 0;
  std::ptrdiff_t cut = -1;
  for (std::size_t u = 0; u < counts.size(); ++u) {
    sum += counts[u];
    if (static_cast<double>(sum) / static_cast<double>(total) > alpha / 2.0) break;
    cut = static_cast<std::ptrdiff_t>(u);
    kept = sum;
  }
  if (cut < 0) return std::nullopt;
  const auto c = static_cast<std::size_t>(cut);
  return Crossover{median_of_sorted(v),
                   {v[c], v[v.size() - 1 - c]},
                   1.0 - 2.0 * (static_cast<double>(kept) / static_cast<double>(total))};
}

std::optional<Interval> order_adjusted_t(std::span<const double> d,
                                         std::span<const int> o,
                                         double alpha) {
  const OrderCheck check = order_check(d, o);
  if (!check.s) return std::nullopt;
  const double m = mean(d);
  const double half = student_quantile(1.0 - alpha / 2.0, static_cast<int>(d.size()) - 2) *
                      *check.s / std::sqrt(static_cast<double>(d.size()));
  return Interval{m - half, m + half};
}

Bootstrap bootstrap_median(std::span<const double> d, double alpha, std::uint64_t seed, int draws) {
  require(!d.empty() && draws >= 100, "bootstrap: no data or under 100 draws");
  Rng rng(seed);
  const std::size_t n = d.size();
  std::vector<double> medians(static_cast<std::size_t>(draws));
  std::vector<double> sample(n);
  for (double& m : medians) {
    for (double& s : sample) s = d[rng.below(n)];
    std::sort(sample.begin(), sample.end());
    m = median_of_sorted(sample);
  }
  std::sort(medians.begin(), medians.end());
  const auto at = [&](double share) {
    const double position = share * draws;
    const auto i = position <= 0.0 ? std::size_t{0} : static_cast<std::size_t>(position);
    return medians[std::min(i, medians.size() - 1)];
  };
  Bootstrap out;
  out.percentile = {at(alpha / 2.0), at(1.0 - alpha / 2.0)};
  // BCa: bias from the share of draws below the estimate (ties count half), acceleration from the jackknife.
  const double estimate = median(d);
  double below = 0.0;
  for (const double m : medians) below += m < estimate ? 1.0 : (m == estimate ? 0.5 : 0.0);
  const double share = std::min(std::max(below / draws, 0.5 / draws), 1.0 - 0.5 / draws);
  const double z0 = normal_quantile(share);
  std::vector<double> jackknife;
  for (std::size_t skip = 0; skip < n && n > 1; ++skip) {
    std::vector<double> rest;
    for (std::size_t i = 0; i < n; ++i) {
      if (i != skip) rest.push_back(d[i]);
    }
    jackknife.push_back(median(rest));
  }
  double cubes = 0.0;
  double squares = 0.0;
  const double centre = jackknife.empty() ? estimate : mean(jackknife);
  for (const double j : jackknife) {
    const double e = centre - j;
    squares += e * e;
    cubes += e * e * e;
  }
  const double scale = squares * std::sqrt(squares);
  const double acceleration = scale > 0.0 ? cubes / (6.0 * scale) : 0.0;
  const auto corrected = [&](double p) {
    const double z = z0 + normal_quantile(p);
    return normal_cdf(z0 + z / (1.0 - acceleration * z));
  };
  out.bca = {at(corrected(alpha / 2.0)), at(corrected(1.0 - alpha / 2.0))};
  const auto coverage = bootstrap_coverage(static_cast<int>(n));
  out.coverage_percentile = coverage.first;
  out.coverage_bca = coverage.second;
  return out;
}

std::pair<double, double> bootstrap_coverage(int n) {
  // Measured: 20,000 samples of normal noise a size, 1,000 draws each. Even and odd medians sit on different lattices, hence
  // the bump at 6. stats_test.cpp repeats a share of it.
  struct Measured {
    int n;
    double percentile;
    double bca;
  };
  constexpr Measured kTable[] = {{4, 0.872, 0.872},
                                 {6, 0.936, 0.933},
                                 {8, 0.922, 0.919},
                                 {12, 0.935, 0.936},
                                 {16, 0.940, 0.939},
                                 {24, 0.942, 0.941}};
  if (n <= kTable[0].n) return {kTable[0].percentile, kTable[0].bca};
  for (std::size_t i = 1; i < std::size(kTable); ++i) {
    if (n <= kTable[i].n) {
      const double share =
          static_cast<double>(n - kTable[i - 1].n) / (kTable[i].n - kTable[i - 1].n);
      return {kTable[i - 1].percentile + share * (kTable[i].percentile - kTable[i - 1].percentile),
              kTable[i - 1].bca + share * (kTable[i].bca - kTable[i - 1].bca)};
    }
  }
  return {kTable[std::size(kTable) - 1].percentile, kTable[std::size(kTable) - 1].bca};
}

double randomisation_p(std::span<const double> d, std::span<const int> o, std::uint64_t seed) {
  require_balanced(d, o);
  const std::size_t n = d.size();
  if (n == 0) return 1.0;
  // Doubled midranks of |d|, integers even with ties; a zero carries no sign.
  std::vector<std::int64_t> rank(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::int64_t less = 0;
    std::int64_t equal = 0;
    for (std::size_t j = 0; j < n; ++j) {
      less += std::fabs(d[j]) < std::fabs(d[i]) ? 1 : 0;
      equal += std::fabs(d[j]) == std::fabs(d[i]) ? 1 : 0;
    }
    const std::int64_t twice = 2 * less + equal + 1;
    // In the order of running, second over first: the sharp null fixes it, the order only chooses its sign.
    rank[i] = d[i] == 0.0 ? 0 : (d[i] > 0.0 ? twice : -twice) * o[i];
  }
  const auto statistic = [&](const auto& order) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += rank[i] * order[i];
    return sum < 0 ? -sum : sum;
  };
  const std::int64_t observed = statistic(o);
  std::uint64_t at_least = 0;
  std::uint64_t total = 0;
  if (n <= 16) {
    std::vector<int> order(n);
    for (std::uint32_t mask = 0; mask < (std::uint32_t{1} << n); ++mask) {
      if (static_cast<std::size_t>(std::popcount(mask)) != n / 2) continue;
      for (std::size_t i = 0; i < n; ++i) order[i] = (mask >> i & 1U) != 0 ? 1 : -1;
      ++total;
      at_least += statistic(order) >= observed ? 1 : 0;
    }
  } else {
    Rng rng(seed);
    std::vector<int> order(o.begin(), o.end());
    total = 1;  // the observed order itself
    at_least = 1;
    for (int i = 0; i < 20000; ++i) {
      shuffle(order, rng);
      ++total;
      at_least += statistic(order) >= observed ? 1 : 0;
    }
  }
  return static_cast<double>(at_least) / static_cast<double>(total);
}

std::vector<int> balanced_order(int n, std::uint64_t seed) {
  require(n >= 0 && n % 2 == 0, "a balanced order needs an even number of pairs");
  std::vector<int> order(static_cast<std::size_t>(n), 1);
  for (int i = 0; i < n / 2; ++i) order[static_cast<std::size_t>(i)] = -1;
  Rng rng(seed);
  shuffle(order, rng);
  return order;
}

std::optional<double> minimum_detectable_effect(int n, double alpha, double s_aa) {
  if (n < 3 || !(s_aa >= 0.0)) return std::nullopt;
  return (student_quantile(1.0 - alpha / 2.0, n - 2) + student_quantile(0.8, n - 2)) * s_aa /
         std::sqrt(0.955 * n);
}

std::optional<int> pairs_needed(double effect, double alpha, double s_aa) {
  for (int n = 8; n <= kMaxPairs; n += 2) {
    const auto mde = minimum_detectable_effect(n, alpha, s_aa);
    if (mde && *mde <= effect) return n;
  }
  return std::nullopt;
}

Holm holm(std::span<const double> p, double alpha) {
  const std::size_t m = p.size();
  std::vector<std::size_t> by_p(m);
  std::iota(by_p.begin(), by_p.end(), std::size_t{0});
  std::stable_sort(
      by_p.begin(), by_p.end(), [&](std::size_t a, std::size_t b) { return p[a] < p[b]; });
  Holm out{std::vector<double>(m), std::vector<int>(m), std::vector<bool>(m)};
  double worst = 0.0;
  for (std::size_t k = 0; k < m; ++k) {
    worst = std::max(worst, std::min(1.0, static_cast<double>(m - k) * p[by_p[k]]));
    out.adjusted[by_p[k]] = worst;
    out.rank[by_p[k]] = static_cast<int>(k) + 1;
    out.reject[by_p[k]] = worst <= alpha;
  }
  return out;
}

const char* to_string(Guard guard) {
  switch (guard) {
    case Guard::kPass:
      return "PASS";
    case Guard::kUnproven:
      return "UNPROVEN";
    case Guard::kFail:
      return "FAIL";
  }
  return "?";
}

std::vector<TierResult> tier_guard(const std::vector<std::vector<double>>& tier_ln,
                                   double floor,
                                   double alpha) {
  const double ln_floor = ln(floor);
  const std::size_t m = tier_ln.size();
  std::vector<double> p;
  for (const auto& r : tier_ln) p.push_back(signed_rank_p_above(r, ln_floor));
  const Holm steps = holm(p, alpha);
  // The level of each tier's own bound: alpha / (m - rank + 1), but never a later step than the first that failed, so
  // that "bound above the floor" and "Holm rejects" are the same statement.
  int first_failed = static_cast<int>(m) + 1;
  for (std::size_t k = 0; k < m; ++k) {
    if (!steps.reject[k]) first_failed = std::min(first_failed, steps.rank[k]);
  }
  std::vector<TierResult> out(m);
  for (std::size_t k = 0; k < m; ++k) {
    const auto& r = tier_ln[k];
    out[k].median_ratio = exp(median(r));
    const int step = std::min(steps.rank[k], first_failed);
    const auto interval =
        signed_rank_interval(r, 2.0 * alpha / static_cast<double>(static_cast<int>(m) - step + 1));
    if (interval) out[k].lower = exp(interval->interval.low);
    out[k].guard = !(out[k].median_ratio >= floor)
                       ? Guard::kFail
                       : (steps.reject[k] ? Guard::kPass : Guard::kUnproven);
  }
  return out;
}

bool equivalent(std::span<const double> d, double margin) {
  const auto interval = signed_rank_interval(d, 0.10);
  const double bound = ln(1.0 + margin);
  return interval && interval->interval.low > -bound && interval->interval.high < bound;
}

std::vector<double> e_process(std::span<const double> d, double s0) {
  require(s0 > 0.0, "the e-process needs a positive frozen sd");
  constexpr double kLambda[] = {0.3, 0.6, 1.0, 1.5};
  double log_product[8] = {};
  std::vector<double> out;
  for (const double x : d) {
    double largest = -kInfinity;
    for (int i = 0; i < 8; ++i) {
      const double step = kLambda[i / 2] * x / s0;
      log_product[i] += (i % 2 == 0 ? step : -step) - ln_cosh(step);
      largest = std::max(largest, log_product[i]);
    }
    double sum = 0.0;
    for (const double l : log_product) sum += exp(l - largest);
    out.push_back(exp(largest) * (sum / 8.0));
  }
  return out;
}

std::vector<double> order_free_sums(std::span<const double> d, std::span<const int> o) {
  require(d.size() == o.size(), "one order sign per pair is needed");
  std::vector<double> out;
  std::vector<double> waiting[2];
  std::size_t used[2] = {0, 0};
  for (std::size_t i = 0; i < d.size(); ++i) {
    const std::size_t side = o[i] > 0 ? 0 : 1;
    if (used[1 - side] < waiting[1 - side].size()) {
      out.push_back(d[i] + waiting[1 - side][used[1 - side]++]);
    } else {
      waiting[side].push_back(d[i]);
    }
  }
  return out;
}

std::vector<std::vector<int>> williams_orders(int arms) {
  require(arms >= 2, "a Williams design needs two arms or more");
  std::vector<int> base;  // 0, 1, n-1, 2, n-2, ..
  for (int low = 1, high = arms - 1; static_cast<int>(base.size()) < arms;) {
    if (base.empty()) {
      base.push_back(0);
    } else if (base.size() % 2 == 1) {
      base.push_back(low++);
    } else {
      base.push_back(high--);
    }
  }
  std::vector<std::vector<int>> rows;
  for (int shift = 0; shift < arms; ++shift) {
    std::vector<int> row;
    for (const int b : base) row.push_back((b + shift) % arms);
    rows.push_back(row);
  }
  if (arms % 2 == 1) {
    for (int shift = 0; shift < arms; ++shift) {
      std::vector<int> row(rows[static_cast<std::size_t>(shift)].rbegin(),
                           rows[static_cast<std::size_t>(shift)].rend());
      rows.push_back(row);
    }
  }
  return rows;
}

std::vector<Contribution> drop_one(const std::vector<std::vector<double>>& rounds_by_member,
                                   double alpha) {
  std::vector<double> p;
  for (const auto& c : rounds_by_member)
    p.push_back(std::min(1.0, 2.0 * signed_rank_p_above(c, 0.0)));
  const Holm steps = holm(p, alpha);
  int first_failed = static_cast<int>(p.size()) + 1;
  for (std::size_t j = 0; j < p.size(); ++j) {
    if (!steps.reject[j]) first_failed = std::min(first_failed, steps.rank[j]);
  }
  std::vector<Contribution> out;
  for (std::size_t j = 0; j < p.size(); ++j) {
    Contribution c;
    c.estimate = hodges_lehmann(rounds_by_member[j]);
    const int step = std::min(steps.rank[j], first_failed);
    const auto interval = signed_rank_interval(
        rounds_by_member[j], alpha / static_cast<double>(static_cast<int>(p.size()) - step + 1));
    if (interval) c.lower = interval->interval.low;
    c.keep = steps.reject[j];
    out.push_back(c);
  }
  return out;
}

}  // namespace assay::stats
