// The small kernels between the ops, a row (one token, or one head of one token) at a time: norms, RoPE, cache rows,
// GeGLU, embedding, residual, softcap. Ordinary functions and not ops: there is one version of each, compiled for several
// instruction sets (rows.inc). The caller spreads rows over threads. Every function does a fixed sequence of float operations, so a row's bits do not depend on
// its neighbours, the thread count or the vector width that the CPU offers.
//
// Pointers: float rows need 4-byte alignment; an output may be the same row as an input, element for element, unless
// said otherwise. n >= 1. NaN and infinity propagate as IEEE says.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/blocks.h"
#include "kernels/base/kv_rows.h"

namespace assay::pointwise {

// r = 1 / sqrt(mean(x^2) + eps). Sum of squares: 16 chains, chain c takes i = c, c + 16, .. with fma from +0, halving
// tree (8, 4, 2, 1); r = 1 / sqrt(sum / n + eps).
float rms_scale(const float* x, int n, float eps);
// y = (x * r) * w; w null: y = x * r.
void scale_row(const float* x, float r, const float* w, int n, float* y);
inline void rms_norm(const float* x, const float* w, int n, float eps, float* y) {
  scale_row(x, rms_scale(x, n, eps), w, n, y);
}

// frequency_i = base^(-2i / head_dim) / factor_i for i < head_dim / 2, in double; factors null: all 1.
void rope_frequencies(double base, int head_dim, const float* factors, double* frequency);
// cos and sin of theta_i = position * frequency_i in double, each rounded once to float.
void rope_angles(int position, const double* frequency, int half, float* cosine, float* sine);
// In place on one head: dimension i pairs with i + head_dim / 2.
//   x_i' = x_i cos_i - x_j sin_i,  x_j' = x_j cos_i + x_i sin_i: two products and one sum, each rounded.
void rope(float* x, int head_dim, const float* cosine, const float* sine);

// n floats into a cache row at element `at` of `rows` (float as it is, half rounded to nearest even).
struct KvRow {
  float* f32 = nullptr;
  std::uint16_t* f16 = nullptr;
};
void store_kv(const float* x, int n, KvRow row);

// u = gelu_fixed(gate) * up
void geglu(const float* gate, const float* up, int n, float* u);

// x = dequantised row `id` of the table, times scale. Reads views in any layout.
void embed(const QuantView& table, int id, float scale, float* x);

// y = a + b;  y = (a + b) * scale
void add(const float* a, const float* b, int n, float* y);
void add_scaled(const float* a, const float* b, float scale, int n, float* y);

// l = cap * tanh_fixed(l / cap), cap > 0
void softcap(float* l, int n, float cap);

// p = softmax over the row: e_i = exp_fixed(x_i - max), sum of 16 chains as in rms_norm with plain additions, p = e / sum.
void softmax(const float* x, int n, float* p);

// The weights that router_topk gives to `ids` (in this order) when they are chosen from outside: with m the largest of
// their logits, e_i = exp_fixed(logit - m), (e / sum) * scale, sum in the order of ids.
void route_weights(
    const float* logits, const float* scale, const std::int32_t* ids, int k, float* weights);

}  // namespace assay::pointwise
