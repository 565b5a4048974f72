#include "kernels/base/expert_ffn.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/fixed_math.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/quant_dot.h"
#include "kernels/base/quant_rows.h"
#include "kernels/base/thread_scratch.h"

namespace assay {
namespace {

// One row of a matrix, ready for many activation rows.
class RowReader {
 public:
  RowReader(const QuantView& w, bool q8) : w_(w), q8_(q8) {
    scratch_ = thread_scratch<std::byte, struct FileRow>(w.row_bytes);
    if (!q8) values_ = thread_scratch<float, struct RowValues>(static_cast<std::size_t>(w.cols));
  }
  void open(int r) {
    row_ = file_row(w_, r, scratch_);
    if (!q8_) dequantize(w_.type, row_, static_cast<std::size_t>(w_.cols), values_);
  }
  // Activation row i of x [..][cols] or xq.
  float dot(const float* x, const Q8View& xq, std::size_t i) const {
    const auto n = static_cast<std::size_t>(w_.cols);
    if (!q8_) return dot_exact(values_, x + i * n, n);
    return dot_fast(w_.type, row_, n, xq.codes + i * n, xq.scales + i * (n / kQ8Block));
  }
  double reference(const float* x, const Q8View& xq, std::size_t i) const {
    const auto n = static_cast<std::size_t>(w_.cols);
    if (!q8_) return reference_dot_exact(values_, x + i * n, n);
    return reference_dot_fast(w_.type, row_, n, xq.codes + i * n, xq.scales + i * (n / kQ8Block));
  }

 private:
  const QuantView& w_;
  bool q8_;
  std::byte* scratch_;
  float* values_ = nullptr;
  const std::byte* row_ = nullptr;
};

// The pieces of the workspace for one pass of up to kExpertTokens tokens.
struct Pieces {
  float* u;               // [slots][width]
  std::int8_t* codes;     // [slots][width]
  std::uint16_t* scales;  // [slots][width / 32]
  std::int32_t* begin;    // [experts + 1]
  std::int32_t* sorted;   // [slots]
};

std::size_t round_up(std::size_t n) { return (n + 63) / 64 * 64; }

std::size_t pass_slots(const ExpertFfn& c) {
  return static_cast<std::size_t>(std::min(c.tokens, kExpertTokens)) *
         static_cast<std::size_t>(c.top_k);
}

// Both the size and, when `pieces` is given, the placement.
std::size_t place(const ExpertFfn& c, std::byte* base, Pieces* pieces) {
  const std::size_t slots = pass_slots(c);
  const auto width = static_cast<std::size_t>(c.width);
  std::size_t at = 0;
  const auto take = [&](std::size_t bytes) {
    const std::size_t here = at;
    at += round_up(bytes);
    return base == nullptr ? nullptr : base + here;
  };
  std::byte* u = take(slots * width * sizeof(float));
  std::byte* codes = take(slots * width);
  std::byte* scales = take(slots * (width / kQ8Block) * sizeof(std::uint16_t));
  std::byte* begin = take((static_cast<std::size_t>(c.experts) + 1) * sizeof(std::int32_t));
  std::byte* sorted = take(slots * sizeof(std::int32_t));
  if (pieces != nullptr) {
    *pieces = {reinterpret_cast<float*>(u),
               reinterpret_cast<std::int8_t*>(codes),
               reinterpret_cast<std::uint16_t*>(scales),
               reinterpret_cast<std::int32_t*>(begin),
               reinterpret_cast<std::int32_t*>(sorted)};
  }
  return at;
}

}  // namespace

std::size_t expert_ffn_workspace_bytes(const ExpertFfn& c) {
  return std::max(place(c, nullptr, nullptr), expert_pass_bytes(c));
}

void bucket_slots(const ExpertFfn& c,
                  int first,
                  int count,
                  std::span<std::int32_t> begin,
                  std::span<std::int32_t> slots) {
  const int from = first * c.top_k;
  const int to = (first + count) * c.top_k;
  std::fill(begin.begin(), begin.end(), 0);
  for (int s = from; s < to; ++s) {
    if (c.ids[s] >= 0) ++begin[static_cast<std::size_t>(c.ids[s]) + 1];
  }
  for (std::size_t e = 1; e < begin.size(); ++e) begin[e] += begin[e - 1];
  for (int s = from; s < to; ++s) {
    if (c.ids[s] >= 0) {
      slots[static_cast<std::size_t>(begin[static_cast<std::size_t>(c.ids[s])]++)] = s;
    }
  }
  // Each begin[e] has moved to the end of its bucket.
  for (std::size_t e = begin.size() - 1; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
}

void run_expert_ffn_scalar(const ExpertFfn& c, Workspace workspace, HostPool* pool) {
  Pieces p{};
  place(c, workspace.data, &p);
  const auto width = static_cast<std::size_t>(c.width);
  const auto hidden = static_cast<std::size_t>(c.hidden);
  const auto top_k = static_cast<std::size_t>(c.top_k);
  const Q8View uq{p.codes, p.scales};
  for (int first = 0; first < c.tokens; first += kExpertTokens) {
    const int count = std::min(kExpertTokens, c.tokens - first);
    const std::size_t from = static_cast<std::size_t>(first) * top_k;
    const std::size_t slots = static_cast<std::size_t>(count) * top_k;
    const std::span<std::int32_t> begin(p.begin, static_cast<std::size_t>(c.experts) + 1);
    bucket_slots(c, first, count, begin, {p.sorted, slots});
    const auto each_slot = [&](int e, auto&& body) {
      for (std::int32_t i = begin[static_cast<std::size_t>(e)];
           i < begin[static_cast<std::size_t>(e) + 1];
           ++i) {
        body(static_cast<std::size_t>(p.sorted[i]));
      }
    };

    // u[slot][f], one row of every expert's gate and up at a time.
    parallel_for(pool, width, 1, [&](std::size_t row_begin, std::size_t row_end) {
      for (int e = 0; e < c.experts; ++e) {
        if (begin[static_cast<std::size_t>(e)] == begin[static_cast<std::size_t>(e) + 1]) continue;
        const auto gate = c.gate_rows(e);
        const auto up = c.up_rows(e);
        for (std::size_t f = row_begin; f < row_end; ++f) {
          RowReader gate_row(*gate.matrix, c.reads_q8);
          gate_row.open(gate.first + static_cast<int>(f));
          each_slot(e, [&](std::size_t s) {
            p.u[(s - from) * width + f] = gelu_fixed(gate_row.dot(c.x, c.xq, s / top_k));
          });
          RowReader up_row(*up.matrix, c.reads_q8);
          up_row.open(up.first + static_cast<int>(f));
          each_slot(e, [&](std::size_t s) {
            p.u[(s - from) * width + f] *= up_row.dot(c.x, c.xq, s / top_k);
          });
        }
      }
    });
    if (c.down_reads_q8) {
      for (std::size_t i = 0; i < slots; ++i) {
        if (c.ids[from + i] < 0) continue;  // its u was never written
        quantize_q8(p.u + i * width, width, p.codes + i * width, p.scales + i * (width / kQ8Block));
      }
    }
    parallel_for(pool, hidden, 1, [&](std::size_t row_begin, std::size_t row_end) {
      float* y = thread_scratch<float, struct SlotResults>(slots);
      for (std::size_t r = row_begin; r < row_end; ++r) {
        for (int e = 0; e < c.experts; ++e) {
          if (begin[static_cast<std::size_t>(e)] == begin[static_cast<std::size_t>(e) + 1])
            continue;
          const auto down = c.down_rows(e);
          RowReader row(*down.matrix, c.down_reads_q8);
          row.open(down.first + static_cast<int>(r));
          each_slot(e, [&](std::size_t s) { y[s - from] = row.dot(p.u, uq, s - from); });
        }
        for (std::size_t t = 0; t < static_cast<std::size_t>(count); ++t) {
          float sum = 0.0F;
          for (std::size_t k = 0; k < top_k; ++k) {
            const std::size_t i = t * top_k + k;
            if (c.ids[from + i] >= 0) sum = std::fma(c.weights[from + i], y[i], sum);
          }
          c.out[(static_cast<std::size_t>(first) + t) * hidden + r] = canonical_nan(sum);
        }
      }
    });
  }
}

std::vector<double> reference_expert_ffn(const ExpertFfn& c) {
  const auto width = static_cast<std::size_t>(c.width);
  const auto hidden = static_cast<std::size_t>(c.hidden);
  std::vector<double> out(static_cast<std::size_t>(c.tokens) * hidden, 0.0);
  std::vector<float> u(width);
  std::vector<double> exact_u(width);
  std::vector<std::int8_t> codes(width);
  std::vector<std::uint16_t> scales(width / kQ8Block);
  std::vector<float> values(width);
  for (std::size_t slot = 0;
       slot < static_cast<std::size_t>(c.tokens) * static_cast<std::size_t>(c.top_k);
       ++slot) {
    const int e = c.ids[slot];
    if (e < 0) continue;
    const std::size_t t = slot / static_cast<std::size_t>(c.top_k);
    for (std::size_t f = 0; f < width; ++f) {
      const auto dot = [&](const ExpertFfn::Rows& rows) {
        RowReader row(*rows.matrix, c.reads_q8);
        row.open(rows.first + static_cast<int>(f));
        return row.reference(c.x, c.xq, t);
      };
      const double z = dot(c.gate_rows(e));
      const double inner = std::sqrt(2.0 / M_PI) * z * (1.0 + 0.044715 * z * z);
      exact_u[f] = 0.5 * z * (1.0 + std::tanh(inner)) * dot(c.up_rows(e));
      u[f] = static_cast<float>(exact_u[f]);
    }
    if (c.down_reads_q8) quantize_q8(u.data(), width, codes.data(), scales.data());
    const auto down = c.down_rows(e);
    std::vector<std::byte> scratch(down.matrix->row_bytes);
    for (std::size_t r = 0; r < hidden; ++r) {
      const std::byte* row =
          file_row(*down.matrix, down.first + static_cast<int>(r), scratch.data());
      double y = 0.0;
      if (c.down_reads_q8) {
        y = reference_dot_fast(down.matrix->type, row, width, codes.data(), scales.data());
      } else {
        dequantize(down.matrix->type, row, width, values.data());
        for (std::size_t f = 0; f < width; ++f) y += static_cast<double>(values[f]) * exact_u[f];
      }
      out[t * hidden + r] += static_cast<double>(c.weights[slot]) * y;
    }
  }
  return out;
}

double expert_ffn_bytes_moved(const ExpertFfn& c, BlockType gate_up_type, BlockType down_type) {
  const double expert =
      2.0 * c.width * static_cast<double>(row_bytes(gate_up_type, c.hidden)) +
      static_cast<double>(c.hidden) * static_cast<double>(row_bytes(down_type, c.width));
  return expert * std::min(c.experts, c.tokens * c.top_k) + 8.0 * c.tokens * c.hidden;
}

double expert_ffn_flops(const ExpertFfn& c) {
  return 6.0 * c.tokens * c.top_k * c.hidden * c.width;
}

// Two products in a row. gelu' is at most 1.13, u is a product of two results and y sums over u, so relative errors of
// u arrive in out unamplified in L2: 3 times the first product's bound, the second's, and 2 + top_k roundings. Where u is
// quantised, a code within a rounding of a tie may fall the other way (about 1e-5 of the codes) and moves that element by
// 1 / 127 of the block's largest; with the largest at 4 times the root mean square, two such codes in one token's
// top_k * width of them move its output by 2 * 4 / 127 / sqrt(top_k * width).
double expert_ffn_error_bound(const ExpertFfn& c,
                              Numerics numerics,
                              BlockType gate_up_type,
                              BlockType down_type) {
  const double smooth = 3.0 * dot_error_bound(numerics, gate_up_type, c.hidden) +
                        dot_error_bound(numerics, down_type, c.width) + 0x1p-24 * (2.0 + c.top_k);
  const double flips =
      c.down_reads_q8 ? 8.0 / 127.0 / std::sqrt(static_cast<double>(c.top_k) * c.width) : 0.0;
  return smooth + flips;
}

}  // namespace assay
