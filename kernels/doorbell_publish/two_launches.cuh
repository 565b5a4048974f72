// Top-k and publication as two launches; behind stock (1,024 threads) and threads256. One block publishes, because a barrier
// of the block is what keeps the number behind the record. Bound: the latency of both launches and of stores to the host.
#pragma once
#include "kernels/doorbell_publish/publish.cuh"

namespace assay::doorbell_publish {
namespace {

constexpr int kRouteWarps = 4;

template <int N>
__global__ void __launch_bounds__(kRouteWarps* kWarp)
    route_kernel(DoorbellPublish::Shape s, DoorbellPublish::Args a) {
  route_tokens<N>(s,
                  a,
                  static_cast<int>(blockIdx.x) * kRouteWarps + warp_id(),
                  static_cast<int>(gridDim.x) * kRouteWarps);
}

__global__ void __launch_bounds__(1024)
    publish_kernel(DoorbellPublish::Shape s, DoorbellPublish::Args a) {
  publish(s, a);
}

inline void launch_two(const DoorbellPublish::Shape& s,
                       const DoorbellPublish::Args& a,
                       int threads,
                       Stream stream) {
  device::for_experts(s.experts, [&]<int N>() {
    launch(route_kernel<N>,
           dim3(blocks_for(static_cast<std::size_t>(s.tokens), kRouteWarps)),
           dim3(kRouteWarps * kWarp),
           0,
           stream,
           s,
           a);
  });
  launch(publish_kernel, dim3(1), dim3(static_cast<unsigned>(threads)), 0, stream, s, a);
}

}  // namespace
}  // namespace assay::doorbell_publish
