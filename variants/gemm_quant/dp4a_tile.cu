// Y[t][r] = sum_c X[t][c] * W[r][c] in int8 on CUDA cores: 32 products a block in integers, one float step a block.
//
// A block of 8 warps owns 32 rows and 64 tokens: lane = row, a warp takes 8 tokens. The activations of 8 blocks of 32 are
// staged in shared memory (64 x 8 x 32 bytes of codes and 64 x 8 scales, 18 KB) and broadcast from there; a lane reads its
// own row's codes, which the other warps find in L1. Bound: integer and float instructions, about 45 for 32 products where
// a tensor core needs a small part of one; expected to lose against halves on tensor cores everywhere, and kept to show it.
// Preconditions: the fast lane, weights with codes.
#include "kernels/base/blocks.cuh"
#include "kernels/base/launch.cuh"
#include "kernels/base/warp_dot.cuh"
#include "kernels/gemm_quant/op.h"

namespace assay {
namespace {

constexpr int kWarps = 8;
constexpr int kEach = 8;  // tokens a warp
constexpr int kTokens = kWarps * kEach;
constexpr int kDepth = 8;  // blocks of 32 staged at a time

template <BlockType T>
__global__ void __launch_bounds__(kWarps* kWarp)
    tile_kernel(GemmQuant::Shape s, GemmQuant::Args a) {
  alignas(16) __shared__ std::int8_t codes[kTokens][kDepth * kQ8Block];
  __shared__ float scales[kTokens][kDepth];
  const int blocks = s.cols / kQ8Block;
  const int first = static_cast<int>(blockIdx.y) * kTokens;
  const int row = static_cast<int>(blockIdx.x) * kWarp + lane_id();
  // Past the last row: the last row again, whose results are dropped.
  const std::byte* w =
      a.w.data + static_cast<std::size_t>(row < s.rows ? row : s.rows - 1) * a.w.row_bytes;
  float sum[kEach] = {};
  for (int base = 0; base < blocks; base += kDepth) {
    const int depth = blocks - base < kDepth ? blocks - base : kDepth;
    __syncthreads();  // the last piece is read
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * depth; i += kWarps * kWarp) {
      const int t = i / depth;
      const int b = i % depth;
      int q[8] = {};
      float scale = 0.0F;
      if (first + t < s.tokens) {
        const std::size_t at =
            static_cast<std::size_t>(first + t) * static_cast<std::size_t>(blocks);
        device::load_q8_block(a.xq.codes + at * kQ8Block, base + b, q);
        scale = device::half_bits_to_float(a.xq.scales[at + static_cast<std::size_t>(base + b)]);
      }
      auto* to = reinterpret_cast<int4*>(&codes[t][b * kQ8Block]);
      to[0] = make_int4(q[0], q[1], q[2], q[3]);
      to[1] = make_int4(q[4], q[5], q[6], q[7]);
      scales[t][b] = scale;
    }
    __syncthreads();  // the piece is staged
    for (int b = 0; b < depth; ++b) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int t = warp_id() * kEach + i;
        int q[8];
        device::load_q8_block(codes[t], b, q);
        sum[i] = device::add_term<T>(device::block_term<T>(w, base + b, q), scales[t][b], sum[i]);
      }
    }
  }
  if (row >= s.rows) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int t = first + warp_id() * kEach + i;
    if (t < s.tokens) {
      a.y[static_cast<std::size_t>(t) * static_cast<std::size_t>(s.rows) +
          static_cast<std::size_t>(row)] = device::canonical_nan(sum[i]);
    }
  }
}

}  // namespace

void launch_dp4a_tile(const GemmQuant::Shape& s,
                      const GemmQuant::Args& a,
                      Workspace,
                      Stream stream) {
  device::for_coded_format(s.type, [&]<BlockType T>() {
    launch(tile_kernel<T>,
           dim3(blocks_for(static_cast<std::size_t>(s.rows), kWarp),
                blocks_for(static_cast<std::size_t>(s.tokens), kTokens)),
           dim3(kWarps * kWarp),
           0,
           stream,
           s,
           a);
  });
}

}  // namespace assay
