// ids, weights [tokens][top_k] from logits [tokens][experts], a warp a row.
//
// Four warps a block, warp w of block b owns row 4 b + w. Up to 512 experts the row's keys stay in registers (4 or 16 a
// lane). No shared memory. Bound: the chain of top_k warp maxima, about a microsecond; bytes do not matter. Faster than
// stock because the copy to the host and the wait are gone.
#include "kernels/base/route.cuh"
#include "kernels/router_topk/op.h"

namespace assay {
namespace {

constexpr int kWarps = 4;

template <int N>
__global__ void route_kernel(RouterTopk::Shape s, RouterTopk::Args a) {
  const int t = static_cast<int>(blockIdx.x) * kWarps + warp_id();
  if (t >= s.tokens) return;
  const std::size_t row = static_cast<std::size_t>(t) * static_cast<std::size_t>(s.experts);
  const std::size_t out = static_cast<std::size_t>(t) * static_cast<std::size_t>(s.top_k);
  device::route_row<N>(a.logits + row, a.scale, s.experts, s.top_k, a.ids + out, a.weights + out);
}

}  // namespace

void launch_device(const RouterTopk::Shape& s,
                   const RouterTopk::Args& a,
                   Workspace,
                   Stream stream) {
  device::for_experts(s.experts, [&]<int N>() {
    launch(route_kernel<N>,
           dim3(blocks_for(static_cast<std::size_t>(s.tokens), kWarps)),
           dim3(kWarps * kWarp),
           0,
           stream,
           s,
           a);
  });
}

}  // namespace assay
