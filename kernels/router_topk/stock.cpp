// Host stock: insertion into a sorted list of top_k, a row at a time.
#include <cmath>

#include "kernels/base/fixed_math.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/quant_dot.h"
#include "kernels/router_topk/rows.h"

namespace assay {
namespace {

void route_row(const RouterTopk::Shape& s,
               const float* logits,
               const float* scale,
               std::int32_t* ids,
               float* weights) {
  int filled = 0;
  bool any_nan = false;
  for (int e = 0; e < s.experts; ++e) {
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
    if (at >= s.top_k) continue;
    const int last = filled < s.top_k ? filled++ : s.top_k - 1;
    for (int i = last; i > at; --i) ids[i] = ids[i - 1];
    ids[at] = e;
  }
  const float maximum = logits[ids[0]];
  float sum = 0.0F;
  for (int i = 0; i < s.top_k; ++i) {
    weights[i] = exp_fixed(logits[ids[i]] - maximum);
    sum += weights[i];
  }
  for (int i = 0; i < s.top_k; ++i) {
    weights[i] = canonical_nan(any_nan ? NAN : weights[i] / sum * scale[ids[i]]);
  }
}

void run_stock(const RouterTopk::Shape& s, const RouterTopk::Args& a, Workspace, Stream stream) {
  router_topk::route_rows(s, a, stream.pool);
}

}  // namespace

namespace router_topk {

void route_rows(const RouterTopk::Shape& s, const RouterTopk::Args& a, HostPool* pool) {
  const auto experts = static_cast<std::size_t>(s.experts);
  const auto k = static_cast<std::size_t>(s.top_k);
  parallel_for(
      pool, static_cast<std::size_t>(s.tokens), 16, [&](std::size_t begin, std::size_t end) {
        for (std::size_t t = begin; t < end; ++t) {
          route_row(s, a.logits + t * experts, a.scale, a.ids + t * k, a.weights + t * k);
        }
      });
}

}  // namespace router_topk

void launch_stock(const RouterTopk::Shape&, const RouterTopk::Args&, Workspace, Stream);

ASSAY_VARIANT(RouterTopk, stock){.summary = "insertion into a sorted list, a row at a time",
                                 .stage = Stage::kStock,
                                 .exactness = Exactness::kSelection,
                                 .deterministic = true,
                                 .batch_invariant = true,
                                 .host = ASSAY_HOST(run_stock),
                                 .cuda = ASSAY_LAUNCH(launch_stock, .host_sync = true)};

}  // namespace assay
