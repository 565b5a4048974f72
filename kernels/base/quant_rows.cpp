#include "kernels/base/quant_rows.h"

#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/base/host_pool.h"
#include "kernels/base/quant_dot.h"
#include "kernels/base/thread_scratch.h"

namespace assay {
namespace {

// ---- the layout ----

// Where a block's fp16 fields are: the first `front` halves of a block, or one at the end (Q6_K).
struct BlockShape {
  std::size_t lines;
  std::size_t halves;
  bool halves_at_end;
  bool fifth_bits;  // unit 0 is 32 single bits
};
BlockShape block_shape(BlockType type) {
  const std::size_t bytes = block_bytes(type);
  const bool minimum = type == BlockType::kQ4_1 || type == BlockType::kQ5_1 ||
                       type == BlockType::kQ4_K || type == BlockType::kQ5_K;
  const std::size_t halves = minimum ? 2 : 1;
  return {(bytes - 2 * halves) / 4,
          halves,
          type == BlockType::kQ6_K,
          type == BlockType::kQ5_0 || type == BlockType::kQ5_1};
}

// Bit 4j + k to bit 8k + j, and back.
std::uint32_t gather_fifth_bits(std::uint32_t v) {
  std::uint32_t out = 0;
  for (unsigned j = 0; j < 8; ++j) {
    for (unsigned k = 0; k < 4; ++k) out |= (v >> (4 * j + k) & 1U) << (8 * k + j);
  }
  return out;
}
std::uint32_t scatter_fifth_bits(std::uint32_t v) {
  std::uint32_t out = 0;
  for (unsigned j = 0; j < 8; ++j) {
    for (unsigned k = 0; k < 4; ++k) out |= (v >> (8 * k + j) & 1U) << (4 * j + k);
  }
  return out;
}

// Visits every unit and half of row `r` of a group: move(offset in the row, offset in the group, bytes, fifth).
template <class Move>
void each_piece(BlockType type, int cols, std::size_t r, Move&& move) {
  const BlockShape shape = block_shape(type);
  const std::size_t blocks = static_cast<std::size_t>(cols) / block_elements(type);
  const std::size_t bytes = block_bytes(type);
  const std::size_t units_at = shape.halves_at_end ? 0 : 2 * shape.halves;
  const std::size_t halves_at = shape.halves_at_end ? 4 * shape.lines : 0;
  const std::size_t plane = blocks * shape.lines * 64;
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t u = 0; u < shape.lines; ++u) {
      move(b * bytes + units_at + 4 * u,
           (b * shape.lines + u) * 64 + 4 * r,
           4,
           shape.fifth_bits && u == 0);
    }
    for (std::size_t h = 0; h < shape.halves; ++h) {
      move(b * bytes + halves_at + 2 * h, plane + (b * shape.halves + h) * 32 + 2 * r, 2, false);
    }
  }
}

void put_row(BlockType type, int cols, const std::byte* row, std::size_t r, std::byte* group) {
  each_piece(type, cols, r, [&](std::size_t from, std::size_t to, std::size_t bytes, bool fifth) {
    if (fifth) {
      std::uint32_t v = 0;
      std::memcpy(&v, row + from, 4);
      v = gather_fifth_bits(v);
      std::memcpy(group + to, &v, 4);
    } else if (bytes == 4) {
      std::memcpy(group + to, row + from, 4);
    } else {
      std::memcpy(group + to, row + from, 2);
    }
  });
}

void get_row(BlockType type, int cols, const std::byte* group, std::size_t r, std::byte* row) {
  each_piece(type, cols, r, [&](std::size_t to, std::size_t from, std::size_t bytes, bool fifth) {
    if (fifth) {
      std::uint32_t v = 0;
      std::memcpy(&v, group + from, 4);
      v = scatter_fifth_bits(v);
      std::memcpy(row + to, &v, 4);
    } else if (bytes == 4) {
      std::memcpy(row + to, group + from, 4);
    } else {
      std::memcpy(row + to, group + from, 2);
    }
  });
}

int grouped_rows(const QuantView& w) { return w.rows / kGroupRows * kGroupRows; }

bool rows16_accepts(const QuantView& w) { return has_codes(w.type) && w.rows >= kGroupRows; }
std::size_t rows16_bytes(const QuantView& w) { return w.bytes(); }
void rows16_prepare(const QuantView& w, std::byte* out) {
  const int grouped = grouped_rows(w);
  const std::size_t group_bytes = w.row_bytes * kGroupRows;
  // A group fills the same bytes as its rows in the file, so a copy of one group is all that writing in place needs.
  std::vector<std::byte> rows(group_bytes);
  for (int r = 0; r < grouped; r += kGroupRows) {
    std::memcpy(rows.data(), w.row(r), group_bytes);
    std::byte* group = out + static_cast<std::size_t>(r) * w.row_bytes;
    for (std::size_t i = 0; i < kGroupRows; ++i) {
      put_row(w.type, w.cols, rows.data() + i * w.row_bytes, i, group);
    }
  }
  const std::size_t done = static_cast<std::size_t>(grouped) * w.row_bytes;
  if (out != w.data) std::memcpy(out + done, w.data + done, w.bytes() - done);
}
void rows16_read_row(const QuantView& w, int r, std::byte* out) {
  if (r >= grouped_rows(w)) {
    std::memcpy(out, w.row(r), w.row_bytes);
    return;
  }
  get_row(w.type,
          w.cols,
          w.row(r / kGroupRows * kGroupRows),
          static_cast<std::size_t>(r % kGroupRows),
          out);
}
void rows16_unprepare(const QuantView& w, const std::byte* prepared, std::byte* out) {
  QuantView view = w;
  view.data = prepared;
  for (int r = 0; r < w.rows; ++r)
    rows16_read_row(view, r, out + static_cast<std::size_t>(r) * w.row_bytes);
}

// The group that holds rows 16 * g ..: in place, or built in this thread's scratch from rows of another layout (rows
// past the end are zero; their results are dropped).
const std::byte* open_group(const QuantView& w, int g) {
  const int first = g * kGroupRows;
  if (w.layout == &kRows16 && first + kGroupRows <= grouped_rows(w)) return w.row(first);
  auto* group = thread_scratch<std::byte, struct GroupBytes>(w.row_bytes * kGroupRows);
  auto* scratch = thread_scratch<std::byte, struct GroupRow>(w.row_bytes);
  if (first + kGroupRows > w.rows) std::memset(group, 0, w.row_bytes * kGroupRows);
  for (int r = first; r < std::min(w.rows, first + kGroupRows); ++r) {
    put_row(w.type, w.cols, file_row(w, r, scratch), static_cast<std::size_t>(r - first), group);
  }
  return group;
}

// ---- products ----

// Activation rows of a product, by lane, and where their results go: row t to y + to[t] * stride.
struct Run {
  const Q8Record* const* records = nullptr;  // fast lane
  const float* const* values = nullptr;      // exact lane and weights without codes
  const std::int32_t* to = nullptr;
  int count = 0;
  float* y = nullptr;
  std::size_t stride = 0;
  Run from(int first, int n) const {
    return {records != nullptr ? records + first : nullptr,
            values != nullptr ? values + first : nullptr,
            to + first,
            n,
            y,
            stride};
  }
};

// Rows [first, first + rows) of `w` times every activation row of the run; row `first` lands at offset 0 of a result.
void product_rows(
    const RowKernels& kernels, const QuantView& w, bool q8, int first, int rows, const Run& run) {
  if (!has_codes(w.type)) {
    const auto tile = kernels.exact(w.type);
    for (int r = 0; r < rows; ++r)
      tile(w.row(first + r), w.cols, run.values, run.to, run.count, run.y + r, run.stride);
    return;
  }
  const auto fast = q8 ? kernels.fast(w.type) : nullptr;
  const auto exact = q8 ? nullptr : kernels.exact(w.type);
  const auto multiply =
      [&](const std::byte* group, const std::int32_t* to, float* y, std::size_t stride) {
        if (q8) {
          fast(group, w.cols, run.records, to, run.count, y, stride);
        } else {
          exact(group, w.cols, run.values, to, run.count, y, stride);
        }
      };
  int r = first;
  const int in_groups = w.layout == &kRows16 ? grouped_rows(w) : 0;
  if (q8 && run.count == 1 && r % kGroupRows == 0 && r < in_groups) {
    const int groups = (std::min(first + rows, in_groups) - r) / kGroupRows;
    float* y = run.y + static_cast<std::size_t>(run.to[0]) * run.stride;
    kernels.fast_one(w.type)(w.row(r), groups, w.cols, run.records[0], y);
    r += groups * kGroupRows;
  }
  while (r < first + rows) {
    const int skip = r % kGroupRows;
    const int take = std::min(kGroupRows - skip, first + rows - r);
    const std::byte* group = open_group(w, r / kGroupRows);
    float* y = run.y + (r - first);
    if (take == kGroupRows) {
      multiply(group, run.to, y, run.stride);
    } else {
      // All 16 rows are computed, to the side, and the wanted ones copied.
      auto* whole = thread_scratch<float, struct PartialGroup>(static_cast<std::size_t>(run.count) *
                                                               kGroupRows);
      auto* to =
          thread_scratch<std::int32_t, struct PartialPlaces>(static_cast<std::size_t>(run.count));
      std::iota(to, to + run.count, 0);
      multiply(group, to, whole, kGroupRows);
      for (int t = 0; t < run.count; ++t) {
        std::memcpy(y + static_cast<std::size_t>(run.to[t]) * run.stride,
                    whole + t * kGroupRows + skip,
                    static_cast<std::size_t>(take) * sizeof(float));
      }
    }
    r += take;
  }
}

// Pieces of a workspace, one behind the other.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t n) {
    std::byte* here = base_ == nullptr ? nullptr : base_ + at_;
    at_ += (n * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(here);
  }
  std::size_t bytes() const { return at_; }

 private:
  std::byte* base_;
  std::size_t at_ = 0;
};

// What packing one activation block costs, in multiplications of a product.
constexpr double kPackMacs = 256.0;

// Units a thread must have at least, so that a small call stays on the caller.
std::size_t grain_for(double macs_a_unit, const RowKernels& kernels) {
  return static_cast<std::size_t>(
      std::max(1.0, kernels.macs_worth_a_thread / std::max(1.0, macs_a_unit)));
}

}  // namespace

const Layout kRows16{.name = "rows16",
                     .accepts = rows16_accepts,
                     .prepared_bytes = rows16_bytes,
                     .prepare = rows16_prepare,
                     .unprepare = rows16_unprepare,
                     .read_row = rows16_read_row};

void multiply_rows(const RowKernels& kernels,
                   const QuantView& w,
                   bool q8,
                   const float* x,
                   const Q8View& xq,
                   int tokens,
                   float* y,
                   Workspace workspace,
                   HostPool* pool) {
  const auto cols = static_cast<std::size_t>(w.cols);
  const auto rows = static_cast<std::size_t>(w.rows);
  const std::size_t blocks = cols / kQ8Block;
  const int most = std::min(tokens, kTokenPass);
  Pieces pieces(workspace.data);
  auto* records = pieces.take<Q8Record>(q8 ? static_cast<std::size_t>(most) * blocks : 0);
  auto* pointers = pieces.take<const void*>(static_cast<std::size_t>(most));
  auto* to = pieces.take<std::int32_t>(static_cast<std::size_t>(most));
  auto** record_rows = reinterpret_cast<const Q8Record**>(pointers);
  auto** value_rows = reinterpret_cast<const float**>(pointers);
  std::iota(to, to + most, 0);
  for (int first = 0; first < tokens; first += kTokenPass) {
    const int count = std::min(kTokenPass, tokens - first);
    const auto from = static_cast<std::size_t>(first);
    Run run{.to = to, .count = count, .y = nullptr, .stride = rows};
    if (q8) {
      parallel_for(pool,
                   static_cast<std::size_t>(count) * blocks,
                   grain_for(kPackMacs, kernels),
                   [&](std::size_t begin, std::size_t end) {
                     kernels.pack(w.type,
                                  xq.codes + from * cols + begin * kQ8Block,
                                  xq.scales + from * blocks + begin,
                                  (end - begin) * kQ8Block,
                                  records + begin);
                   });
      for (int t = 0; t < count; ++t)
        record_rows[t] = records + static_cast<std::size_t>(t) * blocks;
      run.records = record_rows;
    } else {
      for (int t = 0; t < count; ++t)
        value_rows[t] = x + (from + static_cast<std::size_t>(t)) * cols;
      run.values = value_rows;
    }
    const std::size_t groups = (rows + kGroupRows - 1) / kGroupRows;
    const double macs = static_cast<double>(cols) * kGroupRows * count;
    parallel_for(pool, groups, grain_for(macs, kernels), [&](std::size_t begin, std::size_t end) {
      const std::size_t r = begin * kGroupRows;
      const std::size_t take = std::min(end * kGroupRows, rows) - r;
      Run part = run;
      part.y = y + from * rows + r;
      product_rows(kernels, w, q8, static_cast<int>(r), static_cast<int>(take), part);
    });
  }
}

namespace {

constexpr int kUnit = 32;  // rows of gate and of up that make one block of u
constexpr int kRunUnits =
    64;  // blocks of u that one step makes at most: slots times blocks of rows
constexpr std::size_t kSlotResultsBytes =
    std::size_t{1} << 18;  // results of a thread's down rows kept until combined

// The workspace of one pass.
struct ExpertPass {
  Q8Record* x = nullptr;          // [tokens][hidden / 32] when reads_q8
  Q8Record* u_records = nullptr;  // [slots][width / 32] when down_reads_q8
  float* u = nullptr;             // [slots][width] otherwise
  std::int32_t* begin = nullptr;  // [experts + 1]
  std::int32_t* slot =
      nullptr;  // [slots] by expert: first numbers of the whole call, then of the pass
  std::int32_t* count = nullptr;  // [kRunUnits] 0, 1, 2, ..
  const void** x_rows = nullptr;  // [slots] by expert: the token's activations
  const void** u_rows = nullptr;  // [slots] by expert: the slot's u
  std::size_t bytes = 0;

  ExpertPass(const ExpertFfn& c, std::byte* base) {
    const auto tokens = static_cast<std::size_t>(std::min(c.tokens, kExpertTokens));
    const std::size_t slots = tokens * static_cast<std::size_t>(c.top_k);
    const auto width = static_cast<std::size_t>(c.width);
    Pieces pieces(base);
    x = pieces.take<Q8Record>(c.reads_q8 ? tokens * static_cast<std::size_t>(c.hidden / kQ8Block)
                                         : 0);
    u_records = pieces.take<Q8Record>(c.down_reads_q8 ? slots * (width / kQ8Block) : 0);
    u = pieces.take<float>(c.down_reads_q8 ? 0 : slots * width);
    begin = pieces.take<std::int32_t>(static_cast<std::size_t>(c.experts) + 1);
    slot = pieces.take<std::int32_t>(slots);
    count = pieces.take<std::int32_t>(kRunUnits);
    x_rows = pieces.take<const void*>(slots);
    u_rows = pieces.take<const void*>(slots);
    bytes = pieces.bytes();
  }
  Run x_run(const ExpertFfn& c) const {
    Run run;
    if (c.reads_q8) {
      run.records = reinterpret_cast<const Q8Record* const*>(x_rows);
    } else {
      run.values = reinterpret_cast<const float* const*>(x_rows);
    }
    return run;
  }
  Run u_run(const ExpertFfn& c) const {
    Run run;
    if (c.down_reads_q8) {
      run.records = reinterpret_cast<const Q8Record* const*>(u_rows);
    } else {
      run.values = reinterpret_cast<const float* const*>(u_rows);
    }
    return run;
  }
};

// u of rows [f, f + 32 * blocks) for the slots [from, from + count) in the order of the experts, all of expert e;
// blocks * count <= kRunUnits.
void expert_step(const RowKernels& kernels,
                 const ExpertFfn& c,
                 const ExpertPass& pass,
                 int e,
                 int f,
                 int blocks,
                 int from,
                 int count) {
  alignas(64) float gate[kRunUnits * kUnit];
  alignas(64) float up[kRunUnits * kUnit];
  const auto stride = static_cast<std::size_t>(blocks) * kUnit;
  const int rows = std::min(blocks * kUnit, c.width - f);
  if (rows < blocks * kUnit) {
    // The lanes past the last row are computed with the others and dropped.
    std::memset(gate, 0, sizeof(gate));
    std::memset(up, 0, sizeof(up));
  }
  Run run = pass.x_run(c);
  if (run.records != nullptr) run.records += from;
  if (run.values != nullptr) run.values += from;
  run.to = pass.count;
  run.count = count;
  run.stride = stride;
  const auto g = c.gate_rows(e);
  const auto v = c.up_rows(e);
  run.y = gate;
  product_rows(kernels, *g.matrix, c.reads_q8, g.first + f, rows, run);
  run.y = up;
  product_rows(kernels, *v.matrix, c.reads_q8, v.first + f, rows, run);
  kernels.geglu(gate, up, static_cast<std::size_t>(count) * stride, gate);
  const auto width = static_cast<std::size_t>(c.width);
  if (c.down_reads_q8) {
    std::int8_t codes[kRunUnits * kUnit];
    std::uint16_t scales[kRunUnits];
    quantize_q8(gate, static_cast<std::size_t>(count) * stride, codes, scales);
    for (int i = 0; i < count; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * stride;
      kernels.pack(c.down.type,
                   codes + at,
                   scales + at / kUnit,
                   stride,
                   pass.u_records +
                       static_cast<std::size_t>(pass.slot[from + i]) * (width / kUnit) + f / kUnit);
    }
  } else {
    for (int i = 0; i < count; ++i) {
      std::memcpy(pass.u + static_cast<std::size_t>(pass.slot[from + i]) * width + f,
                  gate + static_cast<std::size_t>(i) * stride,
                  static_cast<std::size_t>(rows) * sizeof(float));
    }
  }
}

}  // namespace

std::size_t expert_pass_bytes(const ExpertFfn& c) { return ExpertPass(c, nullptr).bytes; }

void run_expert_ffn(const RowKernels& kernels,
                    const ExpertFfn& c,
                    Workspace workspace,
                    HostPool* pool) {
  const ExpertPass pass(c, workspace.data);
  const auto hidden = static_cast<std::size_t>(c.hidden);
  const auto width = static_cast<std::size_t>(c.width);
  const auto top_k = static_cast<std::size_t>(c.top_k);
  std::iota(pass.count, pass.count + kRunUnits, 0);
  for (int first = 0; first < c.tokens; first += kExpertTokens) {
    const int count = std::min(kExpertTokens, c.tokens - first);
    const auto from = static_cast<std::size_t>(first);
    const std::size_t slots = static_cast<std::size_t>(count) * top_k;
    bucket_slots(
        c, first, count, {pass.begin, static_cast<std::size_t>(c.experts) + 1}, {pass.slot, slots});
    const std::int32_t filled = pass.begin[c.experts];
    const std::size_t row = hidden / kQ8Block;
    for (std::int32_t i = 0; i < filled; ++i) {
      pass.slot[i] -= first * c.top_k;
      const auto slot = static_cast<std::size_t>(pass.slot[i]);
      const std::size_t token = slot / top_k;
      pass.x_rows[i] = c.reads_q8 ? static_cast<const void*>(pass.x + token * row)
                                  : c.x + (from + token) * hidden;
      pass.u_rows[i] = c.down_reads_q8
                           ? static_cast<const void*>(pass.u_records + slot * (width / kQ8Block))
                           : pass.u + slot * width;
    }
    if (c.reads_q8) {
      parallel_for(pool,
                   static_cast<std::size_t>(count) * row,
                   grain_for(kPackMacs, kernels),
                   [&](std::size_t begin, std::size_t end) {
                     kernels.pack((c.fused ? c.gate_up : c.gate).type,
                                  c.xq.codes + (from * row + begin) * kQ8Block,
                                  c.xq.scales + from * row + begin,
                                  (end - begin) * kQ8Block,
                                  pass.x + begin);
                   });
    }

    // u. The steps of expert e are numbered block of f first, slot second, so that any cut leaves runs of slots.
    const auto steps = (width + kUnit - 1) / kUnit;
    parallel_for(pool,
                 static_cast<std::size_t>(filled) * steps,
                 grain_for(2.0 * kUnit * static_cast<double>(hidden), kernels),
                 [&](std::size_t begin, std::size_t end) {
                   for (int e = 0; e < c.experts; ++e) {
                     const std::int32_t bucket = pass.begin[e];
                     const auto n = static_cast<std::size_t>(pass.begin[e + 1] - bucket);
                     const std::size_t base = static_cast<std::size_t>(bucket) * steps;
                     std::size_t at = std::max(begin, base);
                     const std::size_t stop = std::min(end, base + n * steps);
                     while (at < stop) {
                       // One slot: as many blocks of rows as there are, in the order of memory. Else one block.
                       const std::size_t f = (at - base) / n;
                       const std::size_t slot = (at - base) % n;
                       const std::size_t left =
                           std::min(stop - at, static_cast<std::size_t>(kRunUnits));
                       const std::size_t run = n == 1 ? left : std::min(left, n - slot);
                       expert_step(kernels,
                                   c,
                                   pass,
                                   e,
                                   static_cast<int>(f) * kUnit,
                                   n == 1 ? static_cast<int>(run) : 1,
                                   bucket + static_cast<int>(slot),
                                   n == 1 ? 1 : static_cast<int>(run));
                       at += run;
                     }
                   }
                 });

    // out, some rows at a time: every expert's down, then the sum over the ranks.
    const std::size_t groups = (hidden + kGroupRows - 1) / kGroupRows;
    const std::size_t chunk =
        std::max<std::size_t>(1, kSlotResultsBytes / (slots * kGroupRows * sizeof(float)));
    parallel_for(pool,
                 groups,
                 grain_for(static_cast<double>(slots) * kGroupRows * c.width, kernels),
                 [&](std::size_t begin, std::size_t end) {
                   float* y = thread_scratch<float, struct SlotResults>(
                       slots * std::min(chunk, end - begin) * kGroupRows);
                   for (std::size_t g = begin; g < end; g += chunk) {
                     const std::size_t r = g * kGroupRows;
                     const std::size_t rows =
                         std::min(std::min(g + chunk, end) * kGroupRows, hidden) - r;
                     Run run = pass.u_run(c);
                     run.to = pass.slot;
                     run.y = y;
                     run.stride = rows;
                     for (int e = 0; e < c.experts; ++e) {
                       const std::int32_t bucket = pass.begin[e];
                       const std::int32_t n = pass.begin[e + 1] - bucket;
                       if (n == 0) continue;
                       const auto down = c.down_rows(e);
                       product_rows(kernels,
                                    *down.matrix,
                                    c.down_reads_q8,
                                    down.first + static_cast<int>(r),
                                    static_cast<int>(rows),
                                    run.from(bucket, n));
                     }
                     kernels.combine(c.ids + from * top_k,
                                     c.weights + from * top_k,
                                     count,
                                     c.top_k,
                                     y,
                                     rows,
                                     c.out + from * hidden + r,
                                     hidden);
                   }
                 });
  }
}

}  // namespace assay
