#include "kernels/base/route.h"

#include <cmath>

#include "kernels/base/fixed_math.h"
#include "kernels/base/quant_dot.h"

namespace assay {

void route_row(const float* logits,
               const float* scale,
               int experts,
               int top_k,
               std::int32_t* ids,
               float* weights) {
  int filled = 0;
  bool any_nan = false;
  for (int e = 0; e < experts; ++e) {
    const float x = logits[e];
    const bool nan = x != x;
    any_nan = any_nan || nan;
    // Ids arrive in rising order, so a newcomer passes only what it strictly beats; a NaN beats nothing.
    int at = filled;
    while (at > 0 && !nan) {
      const float before = logits[ids[at - 1]];
      if (!(x > before) && before == before) break;
      --at;
    }
    if (at >= top_k) continue;
    const int last = filled < top_k ? filled++ : top_k - 1;
    for (int i = last; i > at; --i) ids[i] = ids[i - 1];
    ids[at] = e;
  }
  const float maximum = logits[ids[0]];
  float sum = 0.0F;
  for (int i = 0; i < top_k; ++i) {
    weights[i] = exp_fixed(logits[ids[i]] - maximum);
    sum += weights[i];
  }
  for (int i = 0; i < top_k; ++i) {
    weights[i] = canonical_nan(any_nan ? NAN : weights[i] / sum * scale[ids[i]]);
  }
}

}  // namespace assay
