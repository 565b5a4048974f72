// Prints every result of the statistics core on a stored input as hexadecimal floats: the bits, not a rounding of them.
// Built by several compilers and flags (bench/CMakeLists.txt); all must print testdata/stats_bits.txt.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "bench/stats.h"
#include "kernels/base/rng.h"

namespace s = assay::stats;

namespace {

void show(const char* name, double v) { std::printf("%s %a\n", name, v); }
void show(const char* name, const s::Interval& i) {
  std::printf("%s %a %a\n", name, i.low, i.high);
}

void one_input(const std::vector<double>& d, std::uint64_t seed) {
  const int n = static_cast<int>(d.size());
  const auto o = s::balanced_order(n, seed);
  std::printf("n %d order", n);
  for (const int sign : o) std::printf(" %d", sign);
  std::printf("\n");
  show("median", s::median(d));
  show("hodges_lehmann", s::hodges_lehmann(d));
  for (const double alpha : {0.1, 0.05, 0.025}) {
    if (const auto i = s::signed_rank_interval(d, alpha)) {
      show("signed_rank", i->interval);
      show("level", i->level);
    }
    if (const auto c = s::crossover_interval(d, o, alpha)) show("crossover", c->interval);
    if (const auto t = s::order_adjusted_t(d, o, alpha)) show("order_adjusted_t", *t);
    if (const auto m = s::minimum_detectable_effect(n, alpha, 0.013)) show("mde", *m);
  }
  const auto check = s::order_check(d, o);
  show("beta", check.beta);
  show("t_beta", check.t_beta.value_or(0.0));
  const auto boot = s::bootstrap_median(d, 0.05, seed, 500);
  show("percentile", boot.percentile);
  show("bca", boot.bca);
  show("p_two_sided", s::signed_rank_p_two_sided(d));
  show("p_randomisation", s::randomisation_p(d, o, seed));
  for (const double e : s::e_process(d, 0.01)) show("e", e);
  for (const auto& t : s::tier_guard({d, d}, 0.98, 0.05)) {
    show("tier", t.median_ratio);
    show("lower", t.lower.value_or(0.0));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream in(argc > 1 ? argv[1] : "");
  std::vector<double> d;
  for (double v = 0.0; in >> v;) d.push_back(v);
  if (d.size() < 24) return 1;
  for (const std::size_t n : {4U, 8U, 12U, 18U, 24U})
    one_input({d.begin(), d.begin() + static_cast<std::ptrdiff_t>(n)}, 7 + n);
  assay::Rng rng(3);
  for (int i = 0; i < 200; ++i) {
    const double x = (rng.uniform() - 0.5) * 60.0;
    show("exp", s::exp(x));
    show("ln", s::ln(s::exp(x) + 1e-9));
    show("normal_cdf", s::normal_cdf(x / 5.0));
    show("student_cdf", s::student_cdf(x / 5.0, 1 + i % 30));
  }
  for (int df = 1; df <= 30; ++df) show("student_quantile", s::student_quantile(0.975, df));
  for (const double p : {1e-6, 0.01, 0.3, 0.5, 0.8, 0.975})
    show("normal_quantile", s::normal_quantile(p));
  return 0;
}
