#include <cmath>
#include <limits>

#include "kernels/base/op_impl.h"
#include "kernels/router_topk/op.h"

namespace assay {

std::vector<RouterTopk::Case> RouterTopk::cases() {
  return {
      {.name = "one_token_128_of_8", .shape = {1, 128, 8}},
      {.name = "tokens_64_of_8", .shape = {33, 64, 8}},
      {.name = "tokens_8_of_2", .shape = {17, 8, 2}},
      {.name = "one_expert", .shape = {3, 1, 1}},
      {.name = "all_chosen", .shape = {5, 8, 8}},
      {.name = "odd_count", .shape = {7, 61, 5}},
      {.name = "many_experts", .shape = {2, 512, 10}},
      {.name = "all_equal", .shape = {4, 64, 8}, .values = Values::kEqual},
      {.name = "many_ties", .shape = {64, 64, 8}, .values = Values::kQuantised},
      {.name = "skewed", .shape = {16, 128, 8}, .values = Values::kSkewed},
      {.name = "huge", .shape = {9, 64, 8}, .values = Values::kHuge},
      {.name = "nan", .shape = {4, 64, 8}, .mostly_nonfinite = true, .values = Values::kNan},
  };
}

void RouterTopk::fill(const Case& c, const Filler& f) {
  Rng rng(f.seed());
  const auto logits = f.get<float>("logits");
  const auto experts = static_cast<std::size_t>(c.shape.experts);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double n = rng.normal();
    switch (c.values) {
      case Values::kEqual:
        logits[i] = 0.25F;
        break;
      case Values::kQuantised:
        logits[i] = static_cast<float>(std::round(n));
        break;
      case Values::kHuge:
        // Beyond the exponent range: all weight on one expert, the rest exactly 0 or denormal.
        logits[i] = static_cast<float>(n * 1e30);
        break;
      case Values::kSkewed:
        logits[i] = static_cast<float>(n - 0.2 * static_cast<double>(i % experts));
        break;
      default:
        logits[i] = static_cast<float>(n);
    }
  }
  if (c.values == Values::kNan) {
    // Row 0: one NaN. Row 1: all NaN. Row 2: +inf. Row 3: -inf everywhere but one.
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float inf = std::numeric_limits<float>::infinity();
    logits[5] = nan;
    for (std::size_t i = 0; i < experts; ++i) logits[experts + i] = nan;
    logits[2 * experts + 9] = inf;
    for (std::size_t i = 0; i < experts; ++i) logits[3 * experts + i] = i == 11 ? 1.0F : -inf;
  }
  for (auto& x : f.get<float>("scale")) x = static_cast<float>(0.5 + rng.uniform());
}

}  // namespace assay
