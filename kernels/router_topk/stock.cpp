// Host stock: insertion into a sorted list of top_k, a row at a time.
#include "kernels/base/host_pool.h"
#include "kernels/base/route.h"
#include "kernels/router_topk/rows.h"

namespace assay {
namespace {

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
          route_row(a.logits + t * experts,
                    a.scale,
                    s.experts,
                    s.top_k,
                    a.ids + t * k,
                    a.weights + t * k);
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
