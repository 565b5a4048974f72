// One row of a quantised matrix times one activation row: the order of the float operations that every host kernel
// follows to the bit, written as plain scalar code. The ops gemv_quant, gemm_quant, experts_host and experts_prefill
// promise this order, so that prefill and decode, scalar and vector code, any thread count agree in every byte.
//
// exact lane, and F32, F16, BF16 weights in both lanes:
//   32 chains from +0; element c goes to chain c mod 32 with chain = fma(w, x, chain), c ascending, w = dequantize().
//   Then a halving tree: for h = 16, 8, 4, 2, 1: chain[j] += chain[j + h] for j < h. The result is chain[0].
//
// fast lane, weights with codes, activations in int8 (blocks.h): 32 elements are one block, block b goes to chain
//   b mod 8, b ascending, chains from +0. I = sum of code * q over the block and Q = sum of q, both exact in int32 (and
//   in float: every integer below is less than 2^24 in magnitude). dx = the activation block's scale.
//     Q4_0, Q5_0, Q8_0  I over (code - offset); chain = fma(d * dx, I, chain)
//     Q4_1, Q5_1        chain = fma(d * dx, I, chain), then chain = fma(m * dx, Q, chain)
//     Q4_K, Q5_K        a block is a sub-block with its 6-bit sc and mn:
//                       chain = fma(d * dx, sc * I, chain), then chain = fma(-(dmin * dx), mn * Q, chain)
//     Q6_K              I = sc[0] * (16 elements) + sc[1] * (16 elements) over (code - 32);
//                       chain = fma(d * dx, I, chain)
//   All scales are fp16, so each product of two is exact in float and a term rounds once. Then a pairwise tree:
//   ((0+1)+(2+3)) + ((4+5)+(6+7)).
//
// A NaN result is the NaN 0x7FC00000: IEEE leaves its bits to the machine.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/base/blocks.h"
#include "kernels/base/stream.h"

namespace assay {

inline constexpr int kExactChains = 32;
inline constexpr int kFastChains = 8;

inline float canonical_nan(float v) {
  return v != v ? std::bit_cast<float>(std::uint32_t{0x7FC00000}) : v;
}

// w, x: [n], any n >= 1.
float dot_exact(const float* w, const float* x, std::size_t n);
// row: n elements in the file's layout, type with codes, n a multiple of the type's block; codes [n], scales [n / 32].
float dot_fast(BlockType type,
               const std::byte* row,
               std::size_t n,
               const std::int8_t* codes,
               const std::uint16_t* scales);

// The lanes' double references for one row. exact: sum of dequantize(row) * x. fast: sum over blocks of the exact
// integer sums times the exact scales.
double reference_dot_exact(const float* w, const float* x, std::size_t n);
double reference_dot_fast(BlockType type,
                          const std::byte* row,
                          std::size_t n,
                          const std::int8_t* codes,
                          const std::uint16_t* scales);

// Relative L2 that the order above may be from its double reference, for products of random sign: each of the
// L = n / chain count steps of a chain and the tree's steps adds an independent rounding of at most 2^-24 of a partial
// sum that grows like the square root, which gives about 2^-24 * 0.4 * sqrt(L / 2 + tree); the bound is several times that.
double dot_error_bound(Numerics numerics, BlockType type, int cols);

// Row `r` of `w` in the file's layout: in place, or rebuilt in `scratch` (w.row_bytes) from the view's own layout.
const std::byte* file_row(const QuantView& w, int r, std::byte* scratch);

}  // namespace assay
