#include "kernels/pointwise/pointwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/base/fixed_math.h"
#include "kernels/base/quant_dot.h"

namespace assay::pointwise {
namespace {

float tree16(float* chain) {
  for (int h = 8; h >= 1; h /= 2) {
    for (int c = 0; c < h; ++c) chain[c] += chain[c + h];
  }
  return chain[0];
}

}  // namespace

void rms_norm(const float* x, const float* w, int n, float eps, float* y) {
  float chain[16] = {};
  for (int i = 0; i < n; ++i) chain[i % 16] = std::fma(x[i], x[i], chain[i % 16]);
  const float r = 1.0F / std::sqrt(tree16(chain) / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = w != nullptr ? (x[i] * r) * w[i] : x[i] * r;
}

void rope_angles(
    int position, double base, int head_dim, const float* factors, float* cosine, float* sine) {
  for (int i = 0; i < head_dim / 2; ++i) {
    const double frequency = std::pow(base, -2.0 * i / head_dim);
    const double theta =
        position * frequency / (factors != nullptr ? static_cast<double>(factors[i]) : 1.0);
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
    std::vector<std::byte> row(table.row_bytes);
    dequantize(table.type, file_row(table, id, row.data()), n, x);
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

}  // namespace assay::pointwise
