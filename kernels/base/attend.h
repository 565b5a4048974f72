// One query attending over its visible keys, on the host: the arithmetic that attention_decode and attention_prefill
// both promise, so that a token's bits do not depend on which of the two computed it.
//
// For query row q at absolute position p and visible keys j in [lo, p], scale 1.0, no softcap, no sinks:
//   score   s_j = dot(q, k_j): 16 chains over the head, chain c takes d = c, c + 16, .. with fma(q_d, k_d, chain) from +0,
//           then the halving tree h in 8, 4, 2, 1: chain[c] += chain[c + h] for c < h.
//   blocks  keys are taken in blocks of kKeyBlock consecutive absolute positions, [256 b, 256 b + 256) cut to [lo, p],
//           in rising order. With running maximum m (from -inf), sum l (+0) and accumulators a_d (+0), a block does
//             n   = max(m, its scores; a NaN never wins)
//             f   = exp(m - n)
//             e_j = exp(s_j - n)
//             t   = sum of e_j: 16 chains by j mod 16 from +0, plain additions in rising j, halving tree as above
//             c_d = chain from +0 over rising j of fma(e_j, v_j[d], c_d)
//             l   = fma(l, f, t);  a_d = fma(a_d, f, c_d);  m = n
//   output  o_d = a_d * (1 / l); a NaN is stored as 0x7FC00000.
// exp is exp_fixed. f16 keys and values are widened exactly. A NaN score, or a score of +inf, makes the row NaN; so do
// only scores of -inf. Where a key lies in memory never matters.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/base/blocks.h"
#include "kernels/base/fixed_math.h"
#include "kernels/base/quant_dot.h"

namespace assay {

inline constexpr int kKeyBlock = 256;
inline constexpr int kScoreChains = 16;

// Where the keys of absolute positions lie: those before `past` in a ring of `slots` rows (position j in row j % slots),
// the others in fresh rows, position j in row j - past. T: float or std::uint16_t (IEEE half).
template <class T>
struct KeySource {
  const T* k_past = nullptr;
  const T* v_past = nullptr;
  const T* k_fresh = nullptr;
  const T* v_fresh = nullptr;
  int past = 0;
  int slots = 1;
  std::size_t stride = 0;  // elements from row to row: kv_heads * head_dim

  struct Run {
    const T* k;
    const T* v;
    int count;  // rows that follow each other in memory
  };
  // The rows from position j on, at most up to position `end` (exclusive). `offset`: the KV head's first element.
  Run run(int j, int end, std::size_t offset) const {
    if (j >= past) {
      const std::size_t at = static_cast<std::size_t>(j - past) * stride + offset;
      return {k_fresh + at, v_fresh + at, end - j};
    }
    const int slot = j % slots;
    const std::size_t at = static_cast<std::size_t>(slot) * stride + offset;
    return {k_past + at, v_past + at, std::min({end, past, j + slots - slot}) - j};
  }
};

namespace attend_detail {

inline float widen(float x) { return x; }
inline float widen(std::uint16_t x) { return half_to_float(x); }

inline float tree16(float* chain) {
  for (int h = 8; h >= 1; h /= 2) {
    for (int c = 0; c < h; ++c) chain[c] += chain[c + h];
  }
  return chain[0];
}

}  // namespace attend_detail

// The order above, written out, for one query head. out may not alias q.
template <class T>
void attend_head_scalar(const KeySource<T>& keys,
                        const float* q,
                        int head_dim,
                        std::size_t offset,
                        int lo,
                        int position,
                        float* out) {
  using attend_detail::tree16;
  using attend_detail::widen;
  float score[kKeyBlock];
  float maximum = -INFINITY;
  float sum = 0.0F;
  std::fill(out, out + head_dim, 0.0F);
  for (int begin = lo; begin <= position;) {
    const int end = std::min(position + 1, (begin / kKeyBlock + 1) * kKeyBlock);
    float block_max = maximum;
    for (int j = begin; j < end;) {
      const auto run = keys.run(j, end, offset);
      for (int r = 0; r < run.count; ++r) {
        const T* k = run.k + static_cast<std::size_t>(r) * keys.stride;
        float chain[kScoreChains] = {};
        for (int d = 0; d < head_dim; ++d) {
          chain[d % kScoreChains] = std::fma(q[d], widen(k[d]), chain[d % kScoreChains]);
        }
        const float s = tree16(chain);
        score[j + r - begin] = s;
        block_max = s > block_max ? s : block_max;
      }
      j += run.count;
    }
    const float rescale = exp_fixed(maximum - block_max);
    float chain[kScoreChains] = {};
    for (int j = begin; j < end; ++j) {
      const float e = exp_fixed(score[j - begin] - block_max);
      score[j - begin] = e;
      chain[j % kScoreChains] += e;
    }
    sum = std::fma(sum, rescale, tree16(chain));
    for (int d0 = 0; d0 < head_dim; d0 += kScoreChains) {
      const int width = std::min(kScoreChains, head_dim - d0);
      float c[kScoreChains] = {};
      for (int j = begin; j < end;) {
        const auto run = keys.run(j, end, offset);
        for (int r = 0; r < run.count; ++r) {
          const T* v = run.v + static_cast<std::size_t>(r) * keys.stride + d0;
          const float e = score[j + r - begin];
          for (int d = 0; d < width; ++d) c[d] = std::fma(e, widen(v[d]), c[d]);
        }
        j += run.count;
      }
      for (int d = 0; d < width; ++d) out[d0 + d] = std::fma(out[d0 + d], rescale, c[d]);
    }
    maximum = block_max;
    begin = end;
  }
  const float inverse = 1.0F / sum;
  for (int d = 0; d < head_dim; ++d) out[d] = canonical_nan(out[d] * inverse);
}

// `heads` query heads that share the KV head at `offset`: q, out [heads][head_dim].
template <class T>
void attend_scalar(const KeySource<T>& keys,
                   const float* q,
                   int heads,
                   int head_dim,
                   std::size_t offset,
                   int lo,
                   int position,
                   float* out) {
  for (int h = 0; h < heads; ++h) {
    attend_head_scalar(keys, q + h * head_dim, head_dim, offset, lo, position, out + h * head_dim);
  }
}

// The same in double with one pass over all keys, the plainest code that can be right.
template <class T>
void attend_reference(const KeySource<T>& keys,
                      const float* q,
                      int head_dim,
                      std::size_t offset,
                      int lo,
                      int position,
                      double* out) {
  using attend_detail::widen;
  std::vector<double> score;
  double maximum = -std::numeric_limits<double>::infinity();
  for (int j = lo; j <= position; ++j) {
    const T* k = keys.run(j, j + 1, offset).k;
    double s = 0.0;
    for (int d = 0; d < head_dim; ++d) s += static_cast<double>(q[d]) * widen(k[d]);
    score.push_back(s);
    maximum = s > maximum ? s : maximum;
  }
  double sum = 0.0;
  std::fill(out, out + head_dim, 0.0);
  for (int j = lo; j <= position; ++j) {
    const T* v = keys.run(j, j + 1, offset).v;
    const double e = std::exp(score[static_cast<std::size_t>(j - lo)] - maximum);
    sum += e;
    for (int d = 0; d < head_dim; ++d) out[d] += e * widen(v[d]);
  }
  for (int d = 0; d < head_dim; ++d) out[d] /= sum;
}

// Relative L2 that float attention may show against the double reference. A score is off by at most
// (head_dim / 16 + 5) eps |q||k|; that shifts its weight by the same absolute amount, so the size of the logits enters:
// `score_scale` bounds |q||k| of the contract's ordinary cases. The rest: chains of 256 and 16 terms and one division.
inline double attend_error_bound(int head_dim, int keys, double score_scale = 64.0) {
  constexpr double kEps = 0x1p-24;
  const double score = (head_dim / 16.0 + 5.0) * score_scale;
  const double sums = std::min(keys, kKeyBlock) + keys / static_cast<double>(kKeyBlock) + 24.0;
  return kEps * (score + sums);
}

}  // namespace assay
