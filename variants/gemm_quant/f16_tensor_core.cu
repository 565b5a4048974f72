// Y[t][r] = sum_c X[t][c] * W[r][c] with half operands on tensor cores: W and X to half in scratch, then cublasGemmEx with
// float accumulation. Only the operands change precision.
//
// X goes through half_rows.cuh, which scales the few tokens that do not fit half. halve_kernel: 8 elements of W a thread. After
// the product unscale_kernel multiplies back the rows of scaled tokens and leaves at once for the others. Scratch: a tile
// of rows of W in half (64 MB at most), X in half, a float a token. Bound: the tensor cores, and at few hundred tokens the
// 4.6 bytes a weight that are written and read again for them.
// Preconditions: the fast lane (the exact lane multiplies floats).
#include "kernels/base/blocks.cuh"
#include "kernels/base/half_rows.cuh"
#include "kernels/gemm_quant/op.h"

namespace assay {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // elements a thread: one 16-byte store

struct alignas(16) Halves {
  std::uint16_t h[kEach];
};

// grid.x covers the columns, grid.y strides over the rows.
template <BlockType T>
__global__ void __launch_bounds__(kThreads) halve_kernel(const std::byte* data,
                                                         std::size_t row_bytes,
                                                         int first,
                                                         int rows,
                                                         int cols,
                                                         std::uint16_t* out) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kEach;
  if (c >= cols) return;
  for (int r = static_cast<int>(blockIdx.y); r < rows; r += static_cast<int>(gridDim.y)) {
    const std::byte* row = data + static_cast<std::size_t>(first + r) * row_bytes;
    std::uint16_t* to = out + static_cast<std::size_t>(r) * static_cast<std::size_t>(cols) + c;
    if (cols % kEach == 0) {
      Halves eight;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        eight.h[i] = device::float_to_half_bits(device::element<T>(row, c + i));
      }
      *reinterpret_cast<Halves*>(to) = eight;
    } else {
      for (int i = 0; i < kEach && c + i < cols; ++i) {
        to[i] = device::float_to_half_bits(device::element<T>(row, c + i));
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    unscale_kernel(float* y, int rows, const float* scales) {
  const float up = scales[blockIdx.x];
  if (up == 1.0F) return;
  for (int r = static_cast<int>(threadIdx.x); r < rows; r += kThreads) {
    float& value = y[blockIdx.x * static_cast<std::size_t>(rows) + static_cast<std::size_t>(r)];
    value = __fmul_rn(value, up);
  }
}

}  // namespace

void launch_f16_tensor_core(const GemmQuant::Shape& s,
                            const GemmQuant::Args& a,
                            Workspace workspace,
                            Stream stream) {
  const auto tokens = static_cast<std::size_t>(s.tokens);
  const auto cols = static_cast<std::size_t>(s.cols);
  const auto round = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  auto* scales = reinterpret_cast<float*>(workspace.data);
  std::byte* at = workspace.data + round(tokens * sizeof(float));
  auto* x = reinterpret_cast<std::uint16_t*>(at);  // [tokens][cols]
  at += round(tokens * cols * 2);
  auto* w = reinterpret_cast<std::uint16_t*>(at);  // [tile][cols]
  const std::size_t left = workspace.bytes - static_cast<std::size_t>(at - workspace.data);
  const std::size_t fit = left / (cols * 2);
  const int tile = fit < static_cast<std::size_t>(s.rows) ? static_cast<int>(fit) : s.rows;

  device::halve_rows(a.x, tokens, s.cols, x, scales, nullptr, stream);
  const cublasHandle_t handle = cublas_on(stream);
  ASSAY_CUBLAS(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));
  const float one = 1.0F;
  const float zero = 0.0F;
  constexpr unsigned kMaxGridY = 65535;
  for (int first = 0; first < s.rows; first += tile) {
    const int rows = s.rows - first < tile ? s.rows - first : tile;
    const dim3 grid(
        blocks_for(cols, kThreads * kEach),
        static_cast<unsigned>(rows) < kMaxGridY ? static_cast<unsigned>(rows) : kMaxGridY);
    device::for_format(s.type, [&]<BlockType T>() {
      launch(halve_kernel<T>,
             grid,
             dim3(kThreads),
             0,
             stream,
             a.w.data,
             a.w.row_bytes,
             first,
             rows,
             s.cols,
             w);
    });
    // As in stock: cuBLAS sees columns.
    ASSAY_CUBLAS(cublasGemmEx(handle,
                              CUBLAS_OP_T,
                              CUBLAS_OP_N,
                              rows,
                              s.tokens,
                              s.cols,
                              &one,
                              w,
                              CUDA_R_16F,
                              s.cols,
                              x,
                              CUDA_R_16F,
                              s.cols,
                              &zero,
                              a.y + first,
                              CUDA_R_32F,
                              s.rows,
                              CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT));
  }
  launch(unscale_kernel,
         dim3(static_cast<unsigned>(s.tokens)),
         dim3(kThreads),
         0,
         stream,
         a.y,
         s.rows,
         scales);
}

}  // namespace assay
