// One chain of launches a slot (token, rank): gate, up, GeGLU, with int8 the quantiser, down, accumulate; for one token of
// eight experts that is 40 or 48 launches. The expert of a slot is read on the device, so nothing waits for the host.
//
// Products: a warp a row, 8 rows a block; the others: a thread an element. No shared memory. Bound: launches, then the
// weights' bytes. Behind stock (float) and chain_dp4a (int8 where the lane and the type allow).
#pragma once
#include "kernels/experts_decode/rows.cuh"

namespace assay::experts_decode {
namespace {

constexpr int kChainWarps = 8;
constexpr int kChainThreads = kChainWarps * kWarp;

// y[r] = row r of the slot's gate (0), up (1) or down (2) times its activations.
template <BlockType T, bool Q8, int kWhich>
__global__ void __launch_bounds__(kChainThreads)
    product_kernel(ExpertsDecode::Shape s, ExpertsDecode::Args a, Scratch p, int slot, float* y) {
  const int r = static_cast<int>(blockIdx.x) * kChainWarps + warp_id();
  const int e = a.ids[slot];
  if (e < 0 || r >= (kWhich == 2 ? s.hidden : s.width)) return;
  float sum = 0.0F;
  if constexpr (kWhich == 2) {
    sum = product<T, Q8>(
        down_row(s, a, e, r), p.u, p.codes, p.scales, static_cast<std::size_t>(slot), s.width);
  } else {
    const std::byte* row = kWhich == 0 ? gate_row(s, a, e, r) : up_row(s, a, e, r);
    const auto token = static_cast<std::size_t>(slot / s.top_k);
    sum = product<T, Q8>(row, a.x, a.xq.codes, a.xq.scales, token, s.hidden);
  }
  if (lane_id() == 0) y[r] = sum;
}

__global__ void __launch_bounds__(kChainThreads)
    geglu_kernel(ExpertsDecode::Shape s, ExpertsDecode::Args a, Scratch p, int slot) {
  const int f = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (a.ids[slot] < 0 || f >= s.width) return;
  p.u[static_cast<std::size_t>(slot) * static_cast<std::size_t>(s.width) +
      static_cast<std::size_t>(f)] = __fmul_rn(device::gelu_fixed(p.gate[f]), p.up[f]);
}

// A warp a block of 32 of u.
__global__ void __launch_bounds__(kChainThreads)
    quantise_kernel(ExpertsDecode::Shape s, ExpertsDecode::Args a, Scratch p, int slot) {
  const int f = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  // Whole warps leave: the width is a multiple of 32 here.
  if (a.ids[slot] < 0 || f >= s.width) return;
  const std::size_t at = static_cast<std::size_t>(slot) * static_cast<std::size_t>(s.width) +
                         static_cast<std::size_t>(f);
  std::uint16_t scale = 0;
  p.codes[at] = device::quantize_q8_lane(p.u[at], scale);
  if (lane_id() == 0) p.scales[at / kQ8Block] = scale;
}

// out[r] = fma(weight, y[r], out[r]), from +0 at rank 0.
__global__ void __launch_bounds__(kChainThreads)
    accumulate_kernel(ExpertsDecode::Shape s, ExpertsDecode::Args a, Scratch p, int slot) {
  const int r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= s.hidden) return;
  float* out = a.out +
               static_cast<std::size_t>(slot / s.top_k) * static_cast<std::size_t>(s.hidden) +
               static_cast<std::size_t>(r);
  float sum = slot % s.top_k == 0 ? 0.0F : *out;
  if (a.ids[slot] >= 0) sum = __fmaf_rn(a.weights[slot], p.y[r], sum);
  *out = device::canonical_nan(sum);
}

template <bool kInt8>
void launch_chain(const ExpertsDecode::Shape& s,
                  const ExpertsDecode::Args& a,
                  Workspace workspace,
                  Stream stream) {
  const Scratch p = scratch_of(s, workspace.data);
  const dim3 block(kChainThreads);
  const dim3 width_rows(blocks_for(static_cast<std::size_t>(s.width), kChainWarps));
  const dim3 hidden_rows(blocks_for(static_cast<std::size_t>(s.hidden), kChainWarps));
  const dim3 width(blocks_for(static_cast<std::size_t>(s.width), kChainThreads));
  const dim3 hidden(blocks_for(static_cast<std::size_t>(s.hidden), kChainThreads));
  for (int slot = 0; slot < s.tokens * s.top_k; ++slot) {
    for_product<kInt8>(s.gate_up_type, [&]<BlockType T, bool Q8>() {
      launch(product_kernel<T, Q8, 0>, width_rows, block, 0, stream, s, a, p, slot, p.gate);
      launch(product_kernel<T, Q8, 1>, width_rows, block, 0, stream, s, a, p, slot, p.up);
    });
    launch(geglu_kernel, width, block, 0, stream, s, a, p, slot);
    for_product<kInt8>(s.down_type, [&]<BlockType T, bool Q8>() {
      if constexpr (Q8) launch(quantise_kernel, width, block, 0, stream, s, a, p, slot);
      launch(product_kernel<T, Q8, 2>, hidden_rows, block, 0, stream, s, a, p, slot, p.y);
    });
    launch(accumulate_kernel, hidden, block, 0, stream, s, a, p, slot);
  }
}

}  // namespace
}  // namespace assay::experts_decode
