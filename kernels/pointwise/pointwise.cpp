#include "kernels/pointwise/pointwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/device_info.h"
#include "kernels/base/fixed_math.h"
#include "kernels/base/quant_dot.h"
#include "kernels/base/thread_scratch.h"
#include "kernels/pointwise/rows.h"

namespace assay::pointwise {
namespace {

float tree16(float* chain) {
  for (int h = 8; h >= 1; h /= 2) {
    for (int c = 0; c < h; ++c) chain[c] += chain[c + h];
  }
  return chain[0];
}

struct EmbedRow;  // names embed()'s scratch

const Rows& rows() {
  static const Rows& best = host_device().avx512_vnni ? kRowsAvx512
                            : host_device().avx2      ? kRowsAvx2
                                                      : kRowsPlain;
  return best;
}

}  // namespace

float rms_scale(const float* x, int n, float eps) { return rows().rms_scale(x, n, eps); }

void scale_row(const float* x, float r, const float* w, int n, float* y) {
  rows().scale_row(x, r, w, n, y);
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
  rows().rope(x, head_dim, cosine, sine);
}

void store_kv(const float* x, int n, KvRow row) {
  if (row.f32 != nullptr) {
    std::memcpy(row.f32, x, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    rows().to_half(x, n, row.f16);
  }
}

void geglu(const float* gate, const float* up, int n, float* u) { rows().geglu(gate, up, n, u); }

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

void add(const float* a, const float* b, int n, float* y) { rows().add(a, b, n, y); }

void add_scaled(const float* a, const float* b, float scale, int n, float* y) {
  rows().add_scaled(a, b, scale, n, y);
}

void softcap(float* l, int n, float cap) { rows().softcap(l, n, cap); }

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
