// What the kernels of experts_decode share: an expert's rows, and a row's product in either arithmetic.
#pragma once
#include "kernels/base/warp_dot.cuh"
#include "kernels/experts_decode/scratch.h"

namespace assay::experts_decode {

__device__ inline const std::byte* row_of(const QuantView& w, int row) {
  return w.data + static_cast<std::size_t>(row) * w.row_bytes;
}
__device__ inline const std::byte* gate_row(const ExpertsDecode::Shape& s,
                                            const ExpertsDecode::Args& a,
                                            int e,
                                            int f) {
  return s.fused ? row_of(a.gate_up, 2 * s.width * e + f) : row_of(a.gate, s.width * e + f);
}
__device__ inline const std::byte* up_row(const ExpertsDecode::Shape& s,
                                          const ExpertsDecode::Args& a,
                                          int e,
                                          int f) {
  return s.fused ? row_of(a.gate_up, 2 * s.width * e + s.width + f) : row_of(a.up, s.width * e + f);
}
__device__ inline const std::byte* down_row(const ExpertsDecode::Shape& s,
                                            const ExpertsDecode::Args& a,
                                            int e,
                                            int r) {
  return row_of(a.down, s.hidden * e + r);
}

// Row i of the activations, in float or, with Q8, in int8. T has codes when Q8.
template <BlockType T, bool Q8>
__device__ inline float product(const std::byte* row,
                                const float* x,
                                const std::int8_t* codes,
                                const std::uint16_t* scales,
                                std::size_t i,
                                int n) {
  const auto cols = static_cast<std::size_t>(n);
  if constexpr (Q8) {
    return device::dot_fast_warp<T>(row, codes + i * cols, scales + i * (cols / kQ8Block), n);
  } else {
    return device::dot_exact_warp<T>(row, x + i * cols, n);
  }
}

// f.template operator()<T, Q8>(): with kInt8 the int8 product where the type has codes, else the float one.
template <bool kInt8, class F>
void for_product(BlockType type, F&& f) {
  device::for_format(type, [&]<BlockType T>() {
    constexpr bool kCoded = T != BlockType::kF32 && T != BlockType::kF16 && T != BlockType::kBF16;
    f.template operator()<T, kInt8 && kCoded>();
  });
}

}  // namespace assay::experts_decode
