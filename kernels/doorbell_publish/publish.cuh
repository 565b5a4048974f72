// The two halves of a publication, as functions of a whole block, so that they can be launches of their own or one.
#pragma once
#include "kernels/base/route.cuh"
#include "kernels/doorbell_publish/op.h"

namespace assay::doorbell_publish {
namespace {

// Top-k, a warp a token; warps without a token pass through, for the barriers that follow are everybody's.
template <int N>
__device__ inline void route_tokens(const DoorbellPublish::Shape& s,
                                    const DoorbellPublish::Args& a,
                                    int first_token,
                                    int step) {
  for (int t = first_token; t < s.tokens; t += step) {
    const std::size_t out = static_cast<std::size_t>(t) * static_cast<std::size_t>(s.top_k);
    device::route_row<N>(
        a.logits + static_cast<std::size_t>(t) * static_cast<std::size_t>(s.experts),
        a.scale,
        s.experts,
        s.top_k,
        a.ids + out,
        a.weights + out);
  }
}

// Ids, weights, x if anything is missing, fence, number. By all threads of the only block; a.ids and a.weights are whole.
__device__ inline void publish(const DoorbellPublish::Shape& s, const DoorbellPublish::Args& a) {
  const int threads = static_cast<int>(blockDim.x);
  const int i0 = static_cast<int>(threadIdx.x);
  const std::int32_t number = *a.published + 1;
  const std::size_t slot = static_cast<std::uint32_t>(number) % static_cast<std::uint32_t>(s.slots);
  const int chosen = s.tokens * s.top_k;
  const int values = s.tokens * s.hidden;
  std::int32_t* ring_ids = a.ring_ids + slot * static_cast<std::size_t>(chosen);
  float* ring_weights = a.ring_weights + slot * static_cast<std::size_t>(chosen);
  float* ring_x = a.ring_x + slot * static_cast<std::size_t>(values);
  bool miss = false;
  for (int i = i0; i < chosen; i += threads) {
    const std::int32_t id = a.ids[i];
    ring_ids[i] = id;
    ring_weights[i] = a.weights[i];
    miss = miss || !s.residency || a.resident[id] == 0;
  }
  if (__syncthreads_or(miss ? 1 : 0) != 0) {
    for (int i = i0; i < values; i += threads) ring_x[i] = a.x[i];
  }
  // Each thread's stores are visible to the host before it reaches the barrier, and the number is stored after it: without
  // the fence the host could see the number first, without the barrier a part of the record could be missing.
  __threadfence_system();
  __syncthreads();
  if (i0 == 0) {
    *a.published = number;
    *reinterpret_cast<volatile std::int32_t*>(a.sequence) = number;
  }
}

}  // namespace
}  // namespace assay::doorbell_publish
