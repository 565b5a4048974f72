#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/router_topk/op.h"

namespace assay {

std::string RouterTopk::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " experts=" + std::to_string(experts) +
         " top_k=" + std::to_string(top_k);
}
std::size_t RouterTopk::workspace_bytes(const Shape&) { return 0; }
double RouterTopk::bytes_moved(const Shape& s) {
  return 4.0 * s.experts * (s.tokens + 1.0) + 8.0 * s.tokens * s.top_k;
}
double RouterTopk::flops(const Shape& s) {
  return static_cast<double>(s.tokens) * (s.experts + 12.0 * s.top_k);
}
// exp within 2 ulp of an argument off by half an ulp of a logit difference below 2^4, a sum of top_k terms, a division
// and a product.
double RouterTopk::error_bound(const Shape& s) {
  return 0x1p-24 * (2.0 * 2.0 + 16.0 + s.top_k + 4.0);
}

std::vector<std::vector<double>> RouterTopk::reference(const Shape& s, const Args& a) {
  const auto experts = static_cast<std::size_t>(s.experts);
  const auto k = static_cast<std::size_t>(s.top_k);
  std::vector<double> ids;
  std::vector<double> weights;
  for (std::size_t t = 0; t < static_cast<std::size_t>(s.tokens); ++t) {
    const float* row = a.logits + t * experts;
    std::vector<std::size_t> order(experts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
      return !std::isnan(row[i]) && (std::isnan(row[j]) || row[i] > row[j]);
    });
    const bool any_nan = std::any_of(row, row + experts, [](float x) { return std::isnan(x); });
    double sum = 0.0;
    for (std::size_t i = 0; i < k; ++i) {
      sum += std::exp(static_cast<double>(row[order[i]]) - row[order[0]]);
    }
    for (std::size_t i = 0; i < k; ++i) {
      ids.push_back(static_cast<double>(order[i]));
      const double e = std::exp(static_cast<double>(row[order[i]]) - row[order[0]]);
      weights.push_back(any_nan ? NAN : e / sum * a.scale[order[i]]);
    }
  }
  return {ids, weights};
}

}  // namespace assay
