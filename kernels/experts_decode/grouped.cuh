// All slots of a call in two launches.
//
// gate_up_kernel: block (i, slot) of 16 warps owns 32 rows of u, two a warp: gate and up of the same row by the same warp,
// GeGLU in registers, and with int8 the 32 values are one block of the quantiser, done by warp 0 from shared memory.
// down_kernel: a warp owns one output (token, row) and takes its ranks in order, so there is nothing left to combine.
// Shared memory: 128 bytes. Bound: the weights' bytes; against the chain: the launches are gone and all experts' loads are
// in flight together. The products are the chain's, so the bits are too.
// Behind grouped (float) and grouped_dp4a (int8 where the lane and the type allow).
#pragma once
#include "kernels/experts_decode/rows.cuh"

namespace assay::experts_decode {
namespace {

constexpr int kGateUpWarps = 16;
constexpr int kGateUpRows = kQ8Block;
constexpr int kDownWarps = 8;

template <BlockType T, bool Q8>
__global__ void __launch_bounds__(kGateUpWarps* kWarp)
    gate_up_kernel(ExpertsDecode::Shape s, ExpertsDecode::Args a, Scratch p, bool quantise) {
  __shared__ float values[kGateUpRows];
  const int slot = static_cast<int>(blockIdx.y);
  const int e = a.ids[slot];
  if (e < 0) return;  // the whole block
  const auto token = static_cast<std::size_t>(slot / s.top_k);
  const int first = static_cast<int>(blockIdx.x) * kGateUpRows;
#pragma unroll
  for (int i = 0; i < kGateUpRows; i += kGateUpWarps) {
    const int f = first + i + warp_id();
    if (f >= s.width) continue;
    const auto dot = [&](const std::byte* row) {
      return product<T, Q8>(row, a.x, a.xq.codes, a.xq.scales, token, s.hidden);
    };
    const float g = dot(gate_row(s, a, e, f));
    const float v = dot(up_row(s, a, e, f));
    if (lane_id() == 0) values[i + warp_id()] = __fmul_rn(device::gelu_fixed(g), v);
  }
  __syncthreads();  // the block's values are written
  if (warp_id() != 0) return;
  const int f = first + lane_id();
  const std::size_t at = static_cast<std::size_t>(slot) * static_cast<std::size_t>(s.width) +
                         static_cast<std::size_t>(f);
  if (quantise) {
    // The width is a multiple of 32 here.
    std::uint16_t scale = 0;
    p.codes[at] = device::quantize_q8_lane(values[lane_id()], scale);
    if (lane_id() == 0) p.scales[at / kQ8Block] = scale;
  } else if (f < s.width) {
    p.u[at] = values[lane_id()];
  }
}

template <BlockType T, bool Q8>
__global__ void __launch_bounds__(kDownWarps* kWarp)
    down_kernel(ExpertsDecode::Shape s, ExpertsDecode::Args a, Scratch p) {
  const int r = static_cast<int>(blockIdx.x) * kDownWarps + warp_id();
  const int token = static_cast<int>(blockIdx.y);
  if (r >= s.hidden) return;
  float sum = 0.0F;
#pragma unroll 4
  for (int k = 0; k < s.top_k; ++k) {
    const int slot = token * s.top_k + k;
    const int e = a.ids[slot];
    if (e < 0) continue;
    const float y = product<T, Q8>(
        down_row(s, a, e, r), p.u, p.codes, p.scales, static_cast<std::size_t>(slot), s.width);
    sum = __fmaf_rn(a.weights[slot], y, sum);
  }
  if (lane_id() == 0) {
    a.out[static_cast<std::size_t>(token) * static_cast<std::size_t>(s.hidden) +
          static_cast<std::size_t>(r)] = device::canonical_nan(sum);
  }
}

template <bool kInt8>
void launch_grouped_as(const ExpertsDecode::Shape& s,
                       const ExpertsDecode::Args& a,
                       Workspace workspace,
                       Stream stream) {
  const Scratch p = scratch_of(s, workspace.data);
  for_product<kInt8>(s.gate_up_type, [&]<BlockType T, bool Q8>() {
    launch(gate_up_kernel<T, Q8>,
           dim3(blocks_for(static_cast<std::size_t>(s.width), kGateUpRows),
                static_cast<unsigned>(s.tokens * s.top_k)),
           dim3(kGateUpWarps * kWarp),
           0,
           stream,
           s,
           a,
           p,
           kInt8 && s.down_reads_q8());
  });
  for_product<kInt8>(s.down_type, [&]<BlockType T, bool Q8>() {
    launch(down_kernel<T, Q8>,
           dim3(blocks_for(static_cast<std::size_t>(s.hidden), kDownWarps),
                static_cast<unsigned>(s.tokens)),
           dim3(kDownWarps * kWarp),
           0,
           stream,
           s,
           a,
           p);
  });
}

}  // namespace
}  // namespace assay::experts_decode
