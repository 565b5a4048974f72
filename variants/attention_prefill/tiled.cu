// o[t][h] = softmax(q[t][h] . k) v over the keys that token t sees, in float, in tiles that share their keys.
//
// The query rows of one KV head, (token, head of the group) in that order, are cut into tiles of 16; a block of 256 threads
// owns a tile and walks over the keys that any of its rows sees, kKeys at a time, with a running maximum and sum a row: shared
// memory is O(tile), whatever the context. Keys and then values of a step lie in one shared buffer in float; scores: thread
// i takes row i mod 16 and keys i / 16, + 16; values: a thread owns up to 4 neighbours x 8 of the head for one row of 16.
// Rows are padded by 4 floats, so that 16 rows read at once fall into different banks. Shared memory: (16 + kKeys) rows of
// head_dim + 4 floats and 16 * (kKeys + 1) weights: 52 KB at 256, 101 KB at 512. Bound: float arithmetic and shared memory;
// a key is read from memory once for 16 rows instead of for each.
// Preconditions: head size a multiple of 64 up to 512, the shared memory.
#include "kernels/attention_prefill/call.cuh"
#include "kernels/attention_prefill/tiled.h"

namespace assay {
namespace {

using attention_prefill::kKeys;
using attention_prefill::kRows;
using device::minus_infinity;

constexpr int kThreads = 256;
constexpr int kLanes = kThreads / kRows;   // threads of a row
constexpr int kMost = 512 / (4 * kLanes);  // groups of four dimensions a thread at the widest head

template <class T>
__global__ void __launch_bounds__(kThreads) tiled_kernel(device::AttendCall<T> c) {
  const int stride = c.head_dim + 4;    // floats from row to row
  auto* q = dynamic_shared<float>();    // [kRows][stride]
  float* kv = q + kRows * stride;       // [kKeys][stride]
  float* weight = kv + kKeys * stride;  // [kRows][kKeys + 1]
  const int i = static_cast<int>(threadIdx.x);
  const int group = c.heads / c.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int rows = c.tokens * group;
  const int first = static_cast<int>(blockIdx.x) * kRows;
  const int last = first + kRows < rows ? first + kRows - 1 : rows - 1;
  const auto source = [&](int row) { return c.row(row / group, kv_head * group + row % group); };
  for (int n = i; n < kRows * c.head_dim; n += kThreads) {
    const int r = n / c.head_dim;
    const int d = n % c.head_dim;
    q[r * stride + d] = first + r <= last ? c.q[source(first + r) + d] : 0.0F;
  }
  const std::size_t offset =
      static_cast<std::size_t>(kv_head) * static_cast<std::size_t>(c.head_dim);
  const int begin = c.oldest(first / group);
  const int end = c.position(last / group) + 1;
  // Zeros past the end, where no row looks.
  const auto fetch = [&](int j0, bool values) {
    const int pairs = c.head_dim / 2;
    for (int n = i; n < kKeys * pairs; n += kThreads) {
      const int r = n / pairs;
      const int d = n % pairs * 2;
      float2 x = make_float2(0.0F, 0.0F);
      if (j0 + r < end) {
        const auto run = c.keys.run(j0 + r, j0 + r + 1, offset);
        x = device::widen2((values ? run.v : run.k) + d);
      }
      *reinterpret_cast<float2*>(kv + r * stride + d) = x;
    }
  };

  const int row = i % kRows;  // of the tile; its threads are 16 apart
  const int lane = i / kRows;
  const int token = (first + row <= last ? first + row : last) / group;
  const int newest = c.position(token);
  const int oldest = c.oldest(token);
  float maximum = minus_infinity();  // the same in all threads of the row
  float sum = 0.0F;
  float acc[kMost][4] = {};
  for (int j0 = begin; j0 < end; j0 += kKeys) {
    __syncthreads();  // the last step's values and weights are read (at first: the queries are staged)
    fetch(j0, false);
    __syncthreads();  // the keys are staged
    const auto* mine = reinterpret_cast<const float4*>(q + row * stride);
    for (int n = lane; n < kKeys; n += kLanes) {
      const auto* key = reinterpret_cast<const float4*>(kv + n * stride);
      float score[4] = {};
      for (int d = 0; d < c.head_dim / 4; ++d) {
        const float4 x = mine[d];
        const float4 y = key[d];
        score[0] = __fmaf_rn(x.x, y.x, score[0]);
        score[1] = __fmaf_rn(x.y, y.y, score[1]);
        score[2] = __fmaf_rn(x.z, y.z, score[2]);
        score[3] = __fmaf_rn(x.w, y.w, score[3]);
      }
      const bool visible = j0 + n <= newest && j0 + n >= oldest;
      weight[row * (kKeys + 1) + n] =
          visible ? __fadd_rn(__fadd_rn(score[0], score[1]), __fadd_rn(score[2], score[3]))
                  : minus_infinity();
    }
    __syncthreads();  // the scores are written, the keys are read
    fetch(j0, true);
    float largest = maximum;
    for (int n = 0; n < kKeys; ++n) largest = fmaxf(largest, weight[row * (kKeys + 1) + n]);
    // Rows that have seen no key yet: weights 0, not NaN.
    const float base = largest > minus_infinity() ? largest : 0.0F;
    const float rescale = device::exp_fixed(__fsub_rn(maximum, base));
    maximum = largest;
    __syncthreads();  // the scores are read, the values are staged
    for (int n = lane; n < kKeys; n += kLanes) {
      float& w = weight[row * (kKeys + 1) + n];
      w = device::exp_fixed(__fsub_rn(w, base));
    }
    __syncthreads();  // the weights are written
    float added = 0.0F;
    for (int n = 0; n < kKeys; ++n) added = __fadd_rn(added, weight[row * (kKeys + 1) + n]);
    sum = __fmaf_rn(sum, rescale, added);
    // Only what the row sees: a NaN or an infinite value of another key must not reach it, not even by a weight of 0.
    const int from = oldest > j0 ? oldest - j0 : 0;
    const int to = newest + 1 - j0 < kKeys ? newest + 1 - j0 : kKeys;
#pragma unroll
    for (int m = 0; m < kMost; ++m) {
      const int d = 4 * (lane + kLanes * m);
      if (d >= c.head_dim) break;
#pragma unroll
      for (int w = 0; w < 4; ++w) acc[m][w] = __fmul_rn(acc[m][w], rescale);
      for (int n = from; n < to; ++n) {
        const float e = weight[row * (kKeys + 1) + n];
        const float4 v = *reinterpret_cast<const float4*>(kv + n * stride + d);
        acc[m][0] = __fmaf_rn(e, v.x, acc[m][0]);
        acc[m][1] = __fmaf_rn(e, v.y, acc[m][1]);
        acc[m][2] = __fmaf_rn(e, v.z, acc[m][2]);
        acc[m][3] = __fmaf_rn(e, v.w, acc[m][3]);
      }
    }
  }
  if (first + row > last) return;
  float* o = c.o + source(first + row);
#pragma unroll
  for (int m = 0; m < kMost; ++m) {
    const int d = 4 * (lane + kLanes * m);
    if (d >= c.head_dim) break;
#pragma unroll
    for (int w = 0; w < 4; ++w) o[d + w] = device::canonical_nan(__fdiv_rn(acc[m][w], sum));
  }
}

}  // namespace

void launch_tiled(const AttentionPrefill::Shape& s,
                  const AttentionPrefill::Args& a,
                  Workspace,
                  Stream stream) {
  attention_prefill::with_call(s, a, [&]<class T>(const device::AttendCall<T>& c) {
    const int rows = s.tokens * (s.heads / s.kv_heads);
    launch(
        tiled_kernel<T>,
        dim3(blocks_for(static_cast<std::size_t>(rows), kRows), static_cast<unsigned>(s.kv_heads)),
        dim3(kThreads),
        attention_prefill::tiled_shared_bytes(s.head_dim),
        stream,
        c);
  });
}

}  // namespace assay
