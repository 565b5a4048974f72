// Top-k and publication in one launch of one block: a warp a token routes, a barrier, then everybody publishes.
//
// 256 threads, 8 warps for up to 8 tokens. A warp without a token does not leave, because every thread must reach the
// barriers. No shared memory but the barrier's. Bound: latency; a launch and its gap less than stock.
#include "kernels/doorbell_publish/publish.cuh"

namespace assay {
namespace {

constexpr int kThreads = 256;

template <int N>
__global__ void __launch_bounds__(kThreads)
    fused_kernel(DoorbellPublish::Shape s, DoorbellPublish::Args a) {
  doorbell_publish::route_tokens<N>(s, a, warp_id(), kThreads / kWarp);
  __syncthreads();  // every token's ids and weights are written: nothing is published before
  doorbell_publish::publish(s, a);
}

}  // namespace

void launch_fused_topk(const DoorbellPublish::Shape& s,
                       const DoorbellPublish::Args& a,
                       Workspace,
                       Stream stream) {
  device::for_experts(s.experts, [&]<int N>() {
    launch(fused_kernel<N>, dim3(1), dim3(kThreads), 0, stream, s, a);
  });
}

}  // namespace assay
