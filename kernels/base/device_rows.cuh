// Plain float products with quantised matrices, shared by the stock kernels: rows to float in scratch, then multiplied in
// the exact lane's order (quant_dot.h), which a warp follows by being the 32 chains.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/base/blocks.cuh"
#include "kernels/base/launch.cuh"

namespace assay::device {
// Unnamed on purpose: each .cu file gets kernels of its own, so that no two variants can share a launch stub.
namespace {

constexpr int kDequantizeThreads = 256;

// out[r][c] = element (first + r, c); grid.x covers the columns, grid.y strides over the rows.
template <BlockType T>
__global__ void dequantize_kernel(
    const std::byte* data, std::size_t row_bytes, int first, int rows, int cols, float* out) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= cols) return;
  for (int r = static_cast<int>(blockIdx.y); r < rows; r += static_cast<int>(gridDim.y)) {
    const std::byte* row = data + static_cast<std::size_t>(first + r) * row_bytes;
    out[static_cast<std::size_t>(r) * static_cast<std::size_t>(cols) +
        static_cast<std::size_t>(c)] = element<T>(row, c);
  }
}

// Rows [first, first + rows) of w in float.
inline void dequantize_rows(const QuantView& w, int first, int rows, float* out, Stream stream) {
  constexpr unsigned kMaxGridY = 65535;
  const dim3 grid(
      blocks_for(static_cast<std::size_t>(w.cols), kDequantizeThreads),
      static_cast<unsigned>(rows) < kMaxGridY ? static_cast<unsigned>(rows) : kMaxGridY);
  for_format(w.type, [&]<BlockType T>() {
    launch(dequantize_kernel<T>,
           grid,
           dim3(kDequantizeThreads),
           0,
           stream,
           w.data,
           w.row_bytes,
           first,
           rows,
           w.cols,
           out);
  });
}

constexpr int kMultiplyWarps = 8;
constexpr int kMaxTokens = 8;

// y[t * y_stride + r] = w[r] . x[t], a warp a row, for up to kMaxTokens tokens: lane j is chain j.
__global__ void multiply_rows_kernel(const float* w,
                                     int rows,
                                     int cols,
                                     const float* x,
                                     int tokens,
                                     float* y,
                                     std::size_t y_stride) {
  const int r = static_cast<int>(blockIdx.x) * kMultiplyWarps + warp_id();
  if (r >= rows) return;
  const float* row = w + static_cast<std::size_t>(r) * static_cast<std::size_t>(cols);
  float chain[kMaxTokens] = {};
  for (int c = lane_id(); c < cols; c += kWarp) {
    const float value = row[c];
#pragma unroll
    for (int t = 0; t < kMaxTokens; ++t) {
      if (t < tokens) {
        const float xv = x[static_cast<std::size_t>(t) * static_cast<std::size_t>(cols) +
                           static_cast<std::size_t>(c)];
        chain[t] = __fmaf_rn(value, xv, chain[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kMaxTokens; ++t) {
    if (t < tokens) {
      const float sum = warp_sum(chain[t]);
      if (lane_id() == 0) {
        y[static_cast<std::size_t>(t) * y_stride + static_cast<std::size_t>(r)] =
            canonical_nan(sum);
      }
    }
  }
}

inline void multiply_rows(const float* w,
                          int rows,
                          int cols,
                          const float* x,
                          int tokens,
                          float* y,
                          std::size_t y_stride,
                          Stream stream) {
  launch(multiply_rows_kernel,
         dim3(blocks_for(static_cast<std::size_t>(rows), kMultiplyWarps)),
         dim3(kMultiplyWarps * kWarp),
         0,
         stream,
         w,
         rows,
         cols,
         x,
         tokens,
         y,
         y_stride);
}

}  // namespace

// Rows of a matrix that fit `bytes` of float scratch, at least one.
inline int tile_rows(std::size_t bytes, int rows, int cols) {
  const std::size_t fit = bytes / (static_cast<std::size_t>(cols) * sizeof(float));
  return fit < static_cast<std::size_t>(rows) ? static_cast<int>(fit) : rows;
}

}  // namespace assay::device
