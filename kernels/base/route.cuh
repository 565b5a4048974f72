// Top-k of one row of router logits by one warp, to the bit what kernels/router_topk/op.h promises. In base because a
// launch that publishes the result (doorbell_publish) does the same selection.
#pragma once
#include <cstdint>

#include "kernels/base/device_math.cuh"
#include "kernels/base/launch.cuh"

namespace assay::device {
namespace {

// Larger is better: numbers by value, +0 and -0 alike, any NaN below -infinity; equal values by the lower id. No two ids
// share a key, so "the next best" is the largest key below the last one and nothing has to be crossed out.
__device__ inline std::uint64_t rank_key(float logit, int id) {
  std::uint32_t value = 0;
  if (logit == logit) {
    const std::uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0F));
    value = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  }
  return (static_cast<std::uint64_t>(value) << 32) | ~static_cast<std::uint32_t>(id);
}
__device__ inline int key_id(std::uint64_t key) {
  return static_cast<int>(~static_cast<std::uint32_t>(key));
}

// N: keys a lane keeps in registers, 32 N >= experts; 0: read the row again for every rank. top_k <= 64: lane i holds
// ranks i and i + 32. All lanes of the warp must call.
template <int N>
__device__ inline void route_row(const float* logits,
                                 const float* scale,
                                 int experts,
                                 int top_k,
                                 std::int32_t* ids,
                                 float* weights) {
  const int lane = lane_id();
  std::uint64_t keys[N > 0 ? N : 1];
  bool nan = false;
  if constexpr (N > 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int e = lane + kWarp * i;
      const float x = e < experts ? logits[e] : 0.0F;
      nan = nan || x != x;
      keys[i] = e < experts ? rank_key(x, e) : 0;
    }
  } else {
    for (int e = lane; e < experts; e += kWarp) nan = nan || logits[e] != logits[e];
  }
  nan = __any_sync(kFullWarp, nan ? 1 : 0) != 0;
  int id[2] = {0, 0};
  std::uint64_t last = ~std::uint64_t{0};  // above every key: its id would be 0 with a NaN's bits
  for (int rank = 0; rank < top_k; ++rank) {
    std::uint64_t best = 0;  // below every key, as ids are not negative
    if constexpr (N > 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (keys[i] < last && keys[i] > best) best = keys[i];
      }
    } else {
      for (int e = lane; e < experts; e += kWarp) {
        const std::uint64_t key = rank_key(logits[e], e);
        if (key < last && key > best) best = key;
      }
    }
    for (int h = kWarp / 2; h >= 1; h /= 2) {
      const std::uint64_t other = __shfl_xor_sync(kFullWarp, best, h);
      if (other > best) best = other;
    }
    if (lane == rank % kWarp) id[rank / kWarp] = key_id(best);
    last = best;
  }
  const float maximum = logits[__shfl_sync(kFullWarp, id[0], 0)];
  float e[2] = {0.0F, 0.0F};
  for (int half = 0; half < 2; ++half) {
    if (lane + kWarp * half < top_k) e[half] = exp_fixed(__fsub_rn(logits[id[half]], maximum));
  }
  float sum = 0.0F;  // in rank order
  for (int rank = 0; rank < top_k; ++rank) {
    sum = __fadd_rn(sum, __shfl_sync(kFullWarp, e[rank / kWarp], rank % kWarp));
  }
  for (int half = 0; half < 2; ++half) {
    const int rank = lane + kWarp * half;
    if (rank >= top_k) continue;
    const float weight = __fmul_rn(__fdiv_rn(e[half], sum), scale[id[half]]);
    ids[rank] = id[half];
    weights[rank] = nan ? __uint_as_float(0x7FC00000U) : canonical_nan(weight);
  }
}

// Calls f.template operator()<N>() with the N of route_row for so many experts.
template <class F>
void for_experts(int experts, F&& f) {
  if (experts <= 4 * kWarp) {
    f.template operator()<4>();
  } else if (experts <= 16 * kWarp) {
    f.template operator()<16>();
  } else {
    f.template operator()<0>();
  }
}

}  // namespace
}  // namespace assay::device
