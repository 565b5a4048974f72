// out[t] = sum over ranks of weight * Down_e (gelu(Gate_e x) * Up_e x), expert by expert: buckets made on the host, then for
// each expert that anybody chose its rows to float in scratch and one chain of float products over its tokens.
//
// The source shape that the variants are measured against: the expert ids come down, the host waits and sorts them. A chain
// is: gather the tokens' activations, dequantise gate and up, one or two cublasSgemm, GeGLU, dequantise down, cublasSgemm;
// after the last expert a thread an output adds a token's ranks in order. Calls are cut to kPassTokens tokens and buckets to
// kBucketRows rows, which bounds the scratch. No shared memory. Bound: float arithmetic and 9 bytes a weight of scratch.
#include "kernels/base/device_rows.cuh"
#include "kernels/base/expert_ffn.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/thread_scratch.h"
#include "kernels/experts_prefill/scratch.h"

namespace assay {
namespace {

using experts_prefill::FloatScratch;

constexpr int kThreads = 256;

// to[i] = row of x that belongs to sorted slot i; a block a row.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const float* x, const std::int32_t* slots, int top_k, int cols, float* to) {
  const float* from =
      x + static_cast<std::size_t>(slots[blockIdx.x] / top_k) * static_cast<std::size_t>(cols);
  float* row = to + blockIdx.x * static_cast<std::size_t>(cols);
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) row[c] = from[c];
}

// u[i][f] = gelu(gate[i][f]) * up[i][f]; rows of gate and up are `stride` apart.
__global__ void __launch_bounds__(kThreads)
    geglu_kernel(const float* gate, const float* up, int stride, int width, float* u) {
  const std::size_t at = blockIdx.x * static_cast<std::size_t>(stride);
  for (int f = static_cast<int>(threadIdx.x); f < width; f += kThreads) {
    u[blockIdx.x * static_cast<std::size_t>(width) + static_cast<std::size_t>(f)] =
        __fmul_rn(device::gelu_fixed(gate[at + static_cast<std::size_t>(f)]),
                  up[at + static_cast<std::size_t>(f)]);
  }
}

// out[t] from the rows of y that where[t][k] names (-1: none), in rank order; a block a token.
__global__ void __launch_bounds__(kThreads) combine_kernel(const float* y,
                                                           const std::int32_t* where,
                                                           const float* weights,
                                                           int top_k,
                                                           int cols,
                                                           float* out) {
  const std::size_t slot = blockIdx.x * static_cast<std::size_t>(top_k);
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
    float sum = 0.0F;
    for (int k = 0; k < top_k; ++k) {
      const std::int32_t row = where[slot + static_cast<std::size_t>(k)];
      if (row < 0) continue;
      sum = __fmaf_rn(weights[slot + static_cast<std::size_t>(k)],
                      y[static_cast<std::size_t>(row) * static_cast<std::size_t>(cols) +
                        static_cast<std::size_t>(c)],
                      sum);
    }
    out[blockIdx.x * static_cast<std::size_t>(cols) + static_cast<std::size_t>(c)] =
        device::canonical_nan(sum);
  }
}

// y[n][rows] = x[n][cols] w[rows][cols]^T; rows of y are `stride` apart.
void multiply(cublasHandle_t handle,
              const float* w,
              int rows,
              int cols,
              const float* x,
              int n,
              float* y,
              int stride) {
  const float one = 1.0F;
  const float zero = 0.0F;
  ASSAY_CUBLAS(cublasSgemm(
      handle, CUBLAS_OP_T, CUBLAS_OP_N, rows, n, cols, &one, w, cols, x, cols, &zero, y, stride));
}

template <class T>
void send(T* device, const T* host, std::size_t count, Stream stream) {
  gpu::upload(reinterpret_cast<std::byte*>(device),
              reinterpret_cast<const std::byte*>(host),
              count * sizeof(T),
              stream);
}

}  // namespace

void launch_stock(const ExpertsPrefill::Shape& s,
                  const ExpertsPrefill::Args& a,
                  Workspace workspace,
                  Stream stream) {
  using experts_prefill::kBucketRows;
  using experts_prefill::kPassTokens;
  const FloatScratch p = experts_prefill::float_scratch(s, workspace.data);
  const auto top_k = static_cast<std::size_t>(s.top_k);
  const std::size_t all = static_cast<std::size_t>(s.tokens) * top_k;
  auto* ids = thread_scratch<std::int32_t, struct ExpertIds>(all);
  gpu::download(reinterpret_cast<std::byte*>(ids),
                reinterpret_cast<const std::byte*>(a.ids),
                all * sizeof(std::int32_t),
                stream);
  ASSAY_CUDA(cudaStreamSynchronize(stream.cuda));
  ExpertFfn call = expert_ffn_of(s, a);
  call.ids = ids;
  const std::size_t pass_slots =
      static_cast<std::size_t>(s.tokens < kPassTokens ? s.tokens : kPassTokens) * top_k;
  const auto experts = static_cast<std::size_t>(s.experts);
  auto* begin = thread_scratch<std::int32_t, struct ExpertBegin>(experts + 1);
  auto* slots = thread_scratch<std::int32_t, struct ExpertSlots>(pass_slots);
  auto* where = thread_scratch<std::int32_t, struct ExpertWhere>(pass_slots);

  const cublasHandle_t handle = cublas_on(stream);
  ASSAY_CUBLAS(cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH));
  const auto hidden = static_cast<std::size_t>(s.hidden);
  const auto width = static_cast<std::size_t>(s.width);
  for (int first = 0; first < s.tokens; first += kPassTokens) {
    const int count = s.tokens - first < kPassTokens ? s.tokens - first : kPassTokens;
    const std::size_t from = static_cast<std::size_t>(first) * top_k;
    const std::size_t n = static_cast<std::size_t>(count) * top_k;
    bucket_slots(call, first, count, {begin, experts + 1}, {slots, n});
    const auto filled = static_cast<std::size_t>(begin[experts]);
    for (std::size_t i = 0; i < n; ++i) where[i] = -1;
    for (std::size_t i = 0; i < filled; ++i) {
      where[static_cast<std::size_t>(slots[i]) - from] = static_cast<std::int32_t>(i);
    }
    send(p.slots, slots, filled, stream);
    send(p.where, where, n, stream);
    for (int e = 0; e < s.experts; ++e) {
      const int bucket = begin[e + 1] - begin[e];
      if (bucket == 0) continue;
      // Gate in rows 0 .. width - 1 of the scratch, up behind it, whether the file fuses them or not.
      const auto gate = call.gate_rows(e);
      const auto up = call.up_rows(e);
      const auto down = call.down_rows(e);
      device::dequantize_rows(*gate.matrix, gate.first, s.width, p.gate_up, stream);
      device::dequantize_rows(*up.matrix, up.first, s.width, p.gate_up + width * hidden, stream);
      device::dequantize_rows(*down.matrix, down.first, s.hidden, p.down, stream);
      for (int at = 0; at < bucket; at += kBucketRows) {
        const int rows = bucket - at < kBucketRows ? bucket - at : kBucketRows;
        const std::size_t sorted = static_cast<std::size_t>(begin[e] + at);
        const dim3 grid(static_cast<unsigned>(rows));
        const dim3 block(kThreads);
        launch(
            gather_kernel, grid, block, 0, stream, a.x, p.slots + sorted, s.top_k, s.hidden, p.x);
        multiply(handle, p.gate_up, 2 * s.width, s.hidden, p.x, rows, p.products, 2 * s.width);
        launch(geglu_kernel,
               grid,
               block,
               0,
               stream,
               p.products,
               p.products + width,
               2 * s.width,
               s.width,
               p.u);
        multiply(handle, p.down, s.hidden, s.width, p.u, rows, p.y + sorted * hidden, s.hidden);
      }
    }
    launch(combine_kernel,
           dim3(static_cast<unsigned>(count)),
           dim3(kThreads),
           0,
           stream,
           p.y,
           p.where,
           a.weights + from,
           s.top_k,
           s.hidden,
           a.out + static_cast<std::size_t>(first) * hidden);
  }
}

}  // namespace assay
