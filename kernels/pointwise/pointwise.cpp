#include "kernels/pointwise/pointwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/fixed_math.h"
#include "kernels/base/quant_dot.h"
#include "kernels/base/thread_scratch.h"

namespace assay::pointwise {
namespace {

float tree16(float* chain) {
  for (int h = 8; h >= 1; h /= 2) {
    for (int c = 0; c < h; ++c) chain[c] += chain[c + h];
  }
  return chain[0];
}

struct EmbedRow;  // names embed()'s scratch

}  // namespace

float rms_scale(const float* x, int n, float eps) {
  float chain[16] = {};
  for (int i = 0; i < n; ++i) chain[i % 16] = std::fma(x[i], x[i], chain[i % 16]);
  return 1.0F / std::sqrt(tree16(chain) / static_cast<float>(n) + eps);
}

void scale_row(const float* x, float r, const float* w, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = w != nullptr ? (x[i] * r) * w[i] : x[i] * r;
}

void rope_frequencies(double base, int head_dim, const float* factors, double* frequency) {
  for (int i = 0; i < head_dim / 2; ++i) {
    frequency[i] = std::pow(base, -2.0 * i / head_dim);
    if (factors != nullptr) frequency[i] /= static_cast<double>(factors[i]);
  }
}

void rope_angles(int position, const double* frequency, int half, float* cosine, float* sine) {
  for (int i = 0; i < half; ++i) {
    const double theta = position * frequency[i];
    cosine[i] = static_cast<float>(std::cos(theta));
    sine[i] = static_cast<float>(std::sin(theta));
  }
}

void rope(float* x, int head_dim, const float* cosine, const float* sine) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

void store_kv(const float* x, int n, KvRow row) {
  if (row.f32 != nullptr) {
    std::memcpy(row.f32, x, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    for (int i = 0; i < n; ++i) row.f16[i] = float_to_half(x[i]);
  }
}

void geglu(const float* gate, const float* up, int n, float* u) {
  for (int i = 0; i < n; ++i) u[i] = gelu_fixed(gate[i]) * up[i];
}

void embed(const QuantView& table, int id, float scale, float* x) {
  const auto n = static_cast<std::size_t>(table.cols);
  if (table.layout == nullptr) {
    dequantize(table.type, table.row(id), n, x);
  } else {
    std::byte* row = thread_scratch<std::byte, EmbedRow>(table.row_bytes);
    dequantize(table.type, file_row(table, id, row), n, x);
  }
  for (std::size_t i = 0; i < n; ++i) x[i] *= scale;
}

void add(const float* a, const float* b, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void add_scaled(const float* a, const float* b, float scale, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = (a[i] + b[i]) * scale;
}

void softcap(float* l, int n, float cap) {
  for (int i = 0; i < n; ++i) l[i] = cap * tanh_fixed(l[i] / cap);
}

void softmax(const float* x, int n, float* p) {
  const float maximum = *std::max_element(x, x + n);
  float chain[16] = {};
  for (int i = 0; i < n; ++i) {
    p[i] = exp_fixed(x[i] - maximum);
    chain[i % 16] += p[i];
  }
  const float sum = tree16(chain);
  for (int i = 0; i < n; ++i) p[i] /= sum;
}

void route_weights(
    const float* logits, const float* scale, const std::int32_t* ids, int k, float* weights) {
  float maximum = logits[ids[0]];
  for (int i = 1; i < k; ++i) maximum = std::max(maximum, logits[ids[i]]);
  float sum = 0.0F;
  for (int i = 0; i < k; ++i) {
    weights[i] = exp_fixed(logits[ids[i]] - maximum);
    sum += weights[i];
  }
  for (int i = 0; i < k; ++i) weights[i] = weights[i] / sum * scale[ids[i]];
}

}  // namespace assay::pointwise
