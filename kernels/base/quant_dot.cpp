#include "kernels/base/quant_dot.h"

#include <cmath>

#include "kernels/base/registry.h"

namespace assay {
namespace {

// One block of 32 elements as the fast lane's sum sees it.
struct BlockTerm {
  std::int32_t product;  // I, for the K types times sc
  std::int32_t offset;   // Q or mn * Q; 0 for types without a minimum
  float scale;           // d
  float minimum;         // m or -dmin; 0 for types without a minimum
};

bool has_minimum(BlockType type) {
  return type == BlockType::kQ4_1 || type == BlockType::kQ5_1 || type == BlockType::kQ4_K ||
         type == BlockType::kQ5_K;
}

// Block b (of 32 elements) of a row against its activation codes q[32].
inline __attribute__((always_inline)) BlockTerm block_term(BlockType type,
                                                           const std::byte* row,
                                                           std::size_t b,
                                                           const std::int8_t* q) {
  BlockCodes codes;
  unpack_codes(type, row, b, codes);
  std::int32_t half[2] = {0, 0};
  std::int32_t sum = 0;
  for (int j = 0; j < 16; ++j) half[0] += codes.code[j] * q[j];
  for (int j = 16; j < 32; ++j) half[1] += codes.code[j] * q[j];
  for (int j = 0; j < 32; ++j) sum += q[j];
  BlockTerm term{};
  term.product = codes.multiplier[0] * half[0] + codes.multiplier[1] * half[1];
  term.offset = codes.minimum_multiplier * sum;
  term.scale = half_to_float(codes.d);
  term.minimum = half_to_float(codes.m);
  return term;
}

inline __attribute__((always_inline)) float dot_exact_body(const float* w,
                                                           const float* x,
                                                           std::size_t n) {
  float chain[kExactChains] = {};
  std::size_t c = 0;
  for (; c + kExactChains <= n; c += kExactChains) {
    for (std::size_t j = 0; j < kExactChains; ++j) {
      chain[j] = __builtin_fmaf(w[c + j], x[c + j], chain[j]);
    }
  }
  for (std::size_t j = 0; c + j < n; ++j) {
    chain[j] = __builtin_fmaf(w[c + j], x[c + j], chain[j]);
  }
  for (int h = kExactChains / 2; h >= 1; h /= 2) {
    for (int j = 0; j < h; ++j) chain[j] += chain[j + h];
  }
  return canonical_nan(chain[0]);
}

inline __attribute__((always_inline)) float dot_fast_body(BlockType type,
                                                          const std::byte* row,
                                                          std::size_t n,
                                                          const std::int8_t* codes,
                                                          const std::uint16_t* scales) {
  float chain[kFastChains] = {};
  for (std::size_t b = 0; b < n / kQ8Block; ++b) {
    const BlockTerm term = block_term(type, row, b, codes + b * kQ8Block);
    const float dx = half_to_float(scales[b]);
    float& sum = chain[b % kFastChains];
    sum = __builtin_fmaf(term.scale * dx, static_cast<float>(term.product), sum);
    if (has_minimum(type)) {
      sum = __builtin_fmaf(term.minimum * dx, static_cast<float>(term.offset), sum);
    }
  }
  return canonical_nan(((chain[0] + chain[1]) + (chain[2] + chain[3])) +
                       ((chain[4] + chain[5]) + (chain[6] + chain[7])));
}

// The C library's fmaf is a call and slow; where the CPU has the instruction, the same body is compiled to use it.
__attribute__((target("fma"))) float dot_exact_fma(const float* w, const float* x, std::size_t n) {
  return dot_exact_body(w, x, n);
}
__attribute__((target("fma"))) float dot_fast_fma(BlockType type,
                                                  const std::byte* row,
                                                  std::size_t n,
                                                  const std::int8_t* codes,
                                                  const std::uint16_t* scales) {
  return dot_fast_body(type, row, n, codes, scales);
}
// Reads a table that the C runtime fills before any constructor runs.
bool has_fma() { return __builtin_cpu_supports("fma") != 0; }

}  // namespace

float dot_exact(const float* w, const float* x, std::size_t n) {
  return has_fma() ? dot_exact_fma(w, x, n) : dot_exact_body(w, x, n);
}

float dot_fast(BlockType type,
               const std::byte* row,
               std::size_t n,
               const std::int8_t* codes,
               const std::uint16_t* scales) {
  return has_fma() ? dot_fast_fma(type, row, n, codes, scales)
                   : dot_fast_body(type, row, n, codes, scales);
}

double reference_dot_exact(const float* w, const float* x, std::size_t n) {
  double sum = 0.0;
  for (std::size_t c = 0; c < n; ++c) sum += static_cast<double>(w[c]) * static_cast<double>(x[c]);
  return sum;
}

double reference_dot_fast(BlockType type,
                          const std::byte* row,
                          std::size_t n,
                          const std::int8_t* codes,
                          const std::uint16_t* scales) {
  double sum = 0.0;
  for (std::size_t b = 0; b < n / kQ8Block; ++b) {
    const BlockTerm term = block_term(type, row, b, codes + b * kQ8Block);
    const double dx = half_to_float(scales[b]);
    sum += static_cast<double>(term.scale) * dx * term.product;
    if (has_minimum(type)) sum += static_cast<double>(term.minimum) * dx * term.offset;
  }
  return sum;
}

double dot_error_bound(Numerics numerics, BlockType type, int cols) {
  const bool fast = numerics == Numerics::kFast && has_codes(type);
  const double steps = fast ? cols / (kQ8Block * kFastChains) + 1 : cols / kExactChains + 1;
  return 0x1p-24 * (4.0 + std::sqrt(has_minimum(type) && fast ? 2.0 * steps : steps));
}

const std::byte* file_row(const QuantView& w, int r, std::byte* scratch) {
  if (w.layout == nullptr) return w.row(r);
  w.layout->read_row(w, r, scratch);
  return scratch;
}

}  // namespace assay
