// Attention with a warp a key, behind the variant `coalesced` of both ops: the lanes split the head, so that one load of a
// warp is one or two whole lines, and the query is staged in shared memory once a block instead of being read for every key.
//
// A block of 8 warps owns one query row (token, head) and takes its keys in tiles of 256 with a running maximum. Scores:
// warp w takes keys 4 w .. 4 w + 3 of every 32. Values: a thread takes two neighbouring head dimensions of every
// `groups`-th key; the groups are added at the end. Shared memory: head_dim + 256 + 512 floats and a float a warp, at
// most 7.2 KB. Needs head_dim even (as the contract says). Order of the sums differs from attend.h, hence bounded.
#pragma once
#include "kernels/base/attend.cuh"

namespace assay::device {
namespace {

constexpr int kCoalescedThreads = kKeyTile;
constexpr int kCoalescedWarps = kCoalescedThreads / kWarp;
constexpr int kCoalescedKeys = 4;  // keys of a warp in flight: their loads overlap

inline std::size_t attend_coalesced_shared_bytes(int head_dim) {
  return sizeof(float) *
         static_cast<std::size_t>(head_dim + kKeyTile + 2 * kCoalescedThreads + kCoalescedWarps);
}

template <class T>
__global__ void __launch_bounds__(kCoalescedThreads) attend_coalesced_kernel(AttendCall<T> c) {
  auto* q = dynamic_shared<float>();             // [head_dim]
  float* weight = q + c.head_dim;                // [kKeyTile]
  float* parts = weight + kKeyTile;              // [groups][2 * pairs]
  float* warps = parts + 2 * kCoalescedThreads;  // [kCoalescedWarps]
  const int i = static_cast<int>(threadIdx.x);
  const int t = static_cast<int>(blockIdx.x) / c.heads;
  const int h = static_cast<int>(blockIdx.x) % c.heads;
  const std::size_t offset = c.kv_offset(h);
  for (int d = i; d < c.head_dim; d += kCoalescedThreads) q[d] = c.q[c.row(t, h) + d];
  __syncthreads();  // the query is staged

  // Pairs of dimensions to threads: a power of two from a warp to the block, so that a group is whole warps.
  int pairs = kWarp;
  while (pairs < c.head_dim / 2 && pairs < kCoalescedThreads) pairs *= 2;
  const int groups = kCoalescedThreads / pairs;
  const int pair = i % pairs;
  const int group = i / pairs;

  const int position = c.position(t);
  float maximum = minus_infinity();
  float sum = 0.0F;      // of this thread's keys
  float acc[2][2] = {};  // head dimensions 2 pair and, in heads wider than 512, 2 pair + 512
  for (int begin = c.oldest(t); begin <= position; begin += kKeyTile) {
    const int end = position + 1 < begin + kKeyTile ? position + 1 : begin + kKeyTile;
    const int count = end - begin;
    for (int n = warp_id() * kCoalescedKeys; n < count; n += kCoalescedWarps * kCoalescedKeys) {
      const T* k[kCoalescedKeys];
      float score[kCoalescedKeys] = {};
#pragma unroll
      for (int u = 0; u < kCoalescedKeys; ++u) {
        // Past the end: the last key again, whose score is dropped.
        const int j = n + u < count ? begin + n + u : end - 1;
        k[u] = c.keys.run(j, j + 1, offset).k;
      }
      for (int d = 2 * lane_id(); d < c.head_dim; d += 2 * kWarp) {
        const float2 x = *reinterpret_cast<const float2*>(q + d);
#pragma unroll
        for (int u = 0; u < kCoalescedKeys; ++u) {
          const float2 y = widen2(k[u] + d);
          score[u] = __fmaf_rn(x.y, y.y, __fmaf_rn(x.x, y.x, score[u]));
        }
      }
#pragma unroll
      for (int u = 0; u < kCoalescedKeys; ++u) {
        score[u] = warp_sum(score[u]);
        if (lane_id() == 0 && n + u < count) weight[n + u] = score[u];
      }
    }
    __syncthreads();  // the scores are written
    const bool visible = i < count;
    const float score = visible ? weight[i] : minus_infinity();
    const float largest = fmaxf(maximum, block_max(score, warps));
    const float rescale = exp_fixed(__fsub_rn(maximum, largest));
    const float e = visible ? exp_fixed(__fsub_rn(score, largest)) : 0.0F;
    weight[i] = e;  // each thread overwrites only what it read
    sum = __fmaf_rn(sum, rescale, e);
    __syncthreads();  // the weights are written
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const int d = 2 * pair + 2 * kCoalescedThreads * w;
      if (d >= c.head_dim) break;
      float2 chain = make_float2(0.0F, 0.0F);
      for (int from = 0; from < count;) {
        const auto run = c.keys.run(begin + from, end, offset);
        for (int r = (group - from) & (groups - 1); r < run.count; r += groups) {
          const float2 v = widen2(run.v + static_cast<std::size_t>(r) * c.keys.stride + d);
          const float a = weight[from + r];
          chain.x = __fmaf_rn(a, v.x, chain.x);
          chain.y = __fmaf_rn(a, v.y, chain.y);
        }
        from += run.count;
      }
      acc[w][0] = __fmaf_rn(acc[w][0], rescale, chain.x);
      acc[w][1] = __fmaf_rn(acc[w][1], rescale, chain.y);
    }
    maximum = largest;
    __syncthreads();  // the weights are read; the next tile writes scores in their place
  }
  sum = block_sum(sum, warps);
  float* o = c.o + c.row(t, h);
  if (groups > 1) {
    // Only heads up to 256 wide, whose pairs fit one step. Layout: group by group, 2 * pairs floats each.
    *reinterpret_cast<float2*>(parts + 2 * i) = make_float2(acc[0][0], acc[0][1]);
    __syncthreads();  // the groups' sums are written
    for (int d = i; d < c.head_dim; d += kCoalescedThreads) {
      float total = parts[d];
      for (int g = 1; g < groups; ++g) total = __fadd_rn(total, parts[2 * pairs * g + d]);
      o[d] = canonical_nan(__fdiv_rn(total, sum));
    }
    return;
  }
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const int d = 2 * pair + 2 * kCoalescedThreads * w;
    if (d < c.head_dim) {
      o[d] = canonical_nan(__fdiv_rn(acc[w][0], sum));
      o[d + 1] = canonical_nan(__fdiv_rn(acc[w][1], sum));
    }
  }
}

template <class T>
void attend_coalesced(const AttendCall<T>& c, Stream stream) {
  launch(attend_coalesced_kernel<T>,
         dim3(static_cast<unsigned>(c.tokens) * static_cast<unsigned>(c.heads)),
         dim3(kCoalescedThreads),
         attend_coalesced_shared_bytes(c.head_dim),
         stream,
         c);
}

}  // namespace
}  // namespace assay::device
