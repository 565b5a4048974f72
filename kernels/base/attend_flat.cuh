// The flat attention kernel behind both ops' stock, in the source material's shape: one thread takes one key and computes
// its whole dot product alone, reading the query from global memory again for every key. Neighbouring threads read
// addresses a whole row apart, so each load touches 32 lines: bound by L1 transactions, not by bytes or flops.
//
// A block of 256 threads owns one query row (token, head); thread i owns position 256 b + i of key block b, later head
// dimensions i, i + 256, .. of the output. Order of operations and bits: kernels/base/attend.h. Static shared memory: 1.1 KB.
#pragma once
#include "kernels/base/attend.cuh"

namespace assay::device {
namespace {

constexpr int kFlatThreads = kKeyTile;
constexpr int kFlatChains = 16;        // kScoreChains of attend.h
constexpr int kFlatDims = 1024 / 256;  // output dimensions of a thread at the widest head

template <class T>
__global__ void __launch_bounds__(kFlatThreads) attend_flat_kernel(AttendCall<T> c) {
  __shared__ float weight[kKeyTile];
  __shared__ float warps[kFlatThreads / kWarp];
  __shared__ float block_total;
  const int i = static_cast<int>(threadIdx.x);
  const int t = static_cast<int>(blockIdx.x) / c.heads;
  const int h = static_cast<int>(blockIdx.x) % c.heads;
  const std::size_t offset = c.kv_offset(h);
  const float* q = c.q + c.row(t, h);
  const int position = c.position(t);
  float maximum = minus_infinity();
  float sum = 0.0F;
  float acc[kFlatDims] = {};
  for (int begin = c.oldest(t); begin <= position;) {
    const int block = begin / kKeyTile * kKeyTile;
    const int end = position + 1 < block + kKeyTile ? position + 1 : block + kKeyTile;
    const int j = block + i;
    const bool visible = j >= begin && j < end;
    float score = minus_infinity();
    if (visible) {
      const T* k = c.keys.run(j, j + 1, offset).k;
      float chain[kFlatChains] = {};
      for (int d0 = 0; d0 < c.head_dim; d0 += kFlatChains) {
#pragma unroll
        for (int d = 0; d < kFlatChains; ++d) {
          if (d0 + d < c.head_dim) chain[d] = __fmaf_rn(q[d0 + d], widen(k[d0 + d]), chain[d]);
        }
      }
#pragma unroll
      for (int half = kFlatChains / 2; half >= 1; half /= 2) {
#pragma unroll
        for (int d = 0; d < half; ++d) chain[d] = __fadd_rn(chain[d], chain[d + half]);
      }
      score = chain[0];
    }
    const float largest = fmaxf(maximum, block_max(score, warps));
    const float rescale = exp_fixed(__fsub_rn(maximum, largest));
    weight[i] = visible ? exp_fixed(__fsub_rn(score, largest)) : 0.0F;
    __syncthreads();  // the weights are written
    if (i < kWarp) {
      // 16 chains by position mod 16; the upper half of the warp repeats the lower.
      float chain = 0.0F;
      for (int n = i % kFlatChains; n < kKeyTile; n += kFlatChains) {
        chain = __fadd_rn(chain, weight[n]);
      }
      for (int half = kFlatChains / 2; half >= 1; half /= 2) {
        chain = __fadd_rn(chain, __shfl_xor_sync(kFullWarp, chain, half));
      }
      if (i == 0) block_total = chain;
    }
    __syncthreads();  // the total is written
    sum = __fmaf_rn(sum, rescale, block_total);
#pragma unroll
    for (int n = 0; n < kFlatDims; ++n) {
      const int d = i + n * kFlatThreads;
      if (d >= c.head_dim) break;
      float chain = 0.0F;
      for (int from = begin; from < end;) {
        const auto run = c.keys.run(from, end, offset);
        const T* v = run.v + d;
        for (int r = 0; r < run.count; ++r, v += c.keys.stride) {
          chain = __fmaf_rn(weight[from + r - block], widen(*v), chain);
        }
        from += run.count;
      }
      acc[n] = __fmaf_rn(acc[n], rescale, chain);
    }
    maximum = largest;
    begin = end;
    // The next block's first barrier, in block_max, comes before the next write of weight.
  }
  const float inverse = __fdiv_rn(1.0F, sum);
  float* o = c.o + c.row(t, h);
#pragma unroll
  for (int n = 0; n < kFlatDims; ++n) {
    const int d = i + n * kFlatThreads;
    if (d < c.head_dim) o[d] = canonical_nan(__fmul_rn(acc[n], inverse));
  }
}

template <class T>
void attend_flat(const AttendCall<T>& c, Stream stream) {
  launch(attend_flat_kernel<T>,
         dim3(static_cast<unsigned>(c.tokens) * static_cast<unsigned>(c.heads)),
         dim3(kFlatThreads),
         0,
         stream,
         c);
}

}  // namespace
}  // namespace assay::device
