// What the kernels of both attention ops share: where keys lie, which of them a query sees, reductions over a block.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/base/device_math.cuh"
#include "kernels/base/kv_rows.h"
#include "kernels/base/launch.cuh"

namespace assay::device {

// Keys a tile: as in attend.h, so that a kernel in its order can give its bits.
inline constexpr int kKeyTile = 256;

// attend.h's KeySource: positions before `past` in a ring of `slots` rows, the others in fresh rows.
template <class T>
struct KeyRows {
  const T* k_past;
  const T* v_past;
  const T* k_fresh;
  const T* v_fresh;
  int past;
  int slots;
  std::size_t stride;  // elements from row to row: kv_heads * head_dim

  struct Run {
    const T* k;
    const T* v;
    int count;  // rows that follow each other in memory
  };
  // The rows from position j on, at most up to position `end` (exclusive). `offset`: the KV head's first element.
  __device__ Run run(int j, int end, std::size_t offset) const {
    if (j >= past) {
      const std::size_t at = static_cast<std::size_t>(j - past) * stride + offset;
      return {k_fresh + at, v_fresh + at, end - j};
    }
    const int slot = j % slots;
    const std::size_t at = static_cast<std::size_t>(slot) * stride + offset;
    int count = end - j;
    if (past - j < count) count = past - j;
    if (slots - slot < count) count = slots - slot;
    return {k_past + at, v_past + at, count};
  }
};

// Either op's call: token t stands at position first + t and sees the `window` newest positions up to its own. With
// `live` the position of token 0 is read there instead.
template <class T>
struct AttendCall {
  KeyRows<T> keys;
  const float* q;  // [tokens][heads][head_dim]
  float* o;        // [tokens][heads][head_dim]
  int tokens;
  int heads;
  int kv_heads;
  int head_dim;
  int first;
  int window;
  const std::int32_t* live;

  __device__ int position(int t) const { return (live != nullptr ? *live : first) + t; }
  __device__ int oldest(int t) const {
    const int lo = position(t) + 1 - window;
    return lo > 0 ? lo : 0;
  }
  __device__ std::size_t row(int t, int h) const {
    return (static_cast<std::size_t>(t) * static_cast<std::size_t>(heads) +
            static_cast<std::size_t>(h)) *
           static_cast<std::size_t>(head_dim);
  }
  // First element of the KV head of query head h in a row of the cache.
  __device__ std::size_t kv_offset(int h) const {
    return static_cast<std::size_t>(h / (heads / kv_heads)) * static_cast<std::size_t>(head_dim);
  }
};

__device__ inline float minus_infinity() { return __uint_as_float(0xFF800000U); }

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(std::uint16_t x) { return half_bits_to_float(x); }
// Two neighbours in one load; p aligned to both.
__device__ inline float2 widen2(const float* p) { return *reinterpret_cast<const float2*>(p); }
__device__ inline float2 widen2(const std::uint16_t* p) {
  const auto both = *reinterpret_cast<const std::uint32_t*>(p);
  return make_float2(half_bits_to_float(static_cast<std::uint16_t>(both)),
                     half_bits_to_float(static_cast<std::uint16_t>(both >> 16)));
}

// Over the whole block, in every thread; `scratch`: a float a warp. Starts with a barrier, so scratch may be in use until
// then, and what was written to shared memory before the call is visible after it.
__device__ inline float block_max(float v, float* scratch) {
  v = warp_max(v);
  __syncthreads();
  if (lane_id() == 0) scratch[warp_id()] = v;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  v = scratch[0];
  for (int w = 1; w < warps; ++w) v = fmaxf(v, scratch[w]);
  return v;
}
__device__ inline float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  __syncthreads();
  if (lane_id() == 0) scratch[warp_id()] = v;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  v = scratch[0];
  for (int w = 1; w < warps; ++w) v = __fadd_rn(v, scratch[w]);
  return v;
}

}  // namespace assay::device
