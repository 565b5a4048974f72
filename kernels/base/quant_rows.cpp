#include "kernels/base/quant_rows.h"

#include <bit>
#include <cstring>

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
  for (int r = 0; r < grouped; ++r) {
    std::byte* group = out + static_cast<std::size_t>(r / kGroupRows * kGroupRows) * w.row_bytes;
    put_row(w.type, w.cols, w.row(r), static_cast<std::size_t>(r % kGroupRows), group);
  }
  const std::size_t done = static_cast<std::size_t>(grouped) * w.row_bytes;
  std::memcpy(out + done, w.data + done, w.bytes() - done);
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

// ---- activations ----

void pack_records(BlockType type,
                  const std::int8_t* codes,
                  const std::uint16_t* scales,
                  std::size_t n,
                  Q8Record* out) {
  int offset = 0;
  bool minimum = false;
  bool split = false;
  switch (type) {
    case BlockType::kQ4_0:
      offset = 8;
      break;
    case BlockType::kQ5_0:
      offset = 16;
      break;
    case BlockType::kQ8_0:
      offset = 128;
      break;
    case BlockType::kQ6_K:
      split = true;
      break;
    default:
      minimum = true;
  }
  for (std::size_t b = 0; b < n / kQ8Block; ++b) {
    const std::int8_t* q = codes + b * kQ8Block;
    Q8Record& r = out[b];
    std::memcpy(r.codes, q, 32);
    r.scale = half_to_float(scales[b]);
    int low = 0;
    int high = 0;
    for (int j = 0; j < 16; ++j) low += q[j];
    for (int j = 16; j < 32; ++j) high += q[j];
    if (minimum) {
      r.correction = std::bit_cast<std::uint32_t>(static_cast<float>(low + high));
    } else if (split) {
      r.correction = (static_cast<std::uint32_t>(low) & 0xFFFFU) | static_cast<std::uint32_t>(high)
                                                                       << 16;
    } else {
      r.correction = static_cast<std::uint32_t>(-offset * (low + high));
    }
  }
}

// One operand of a product: activation rows in either form.
struct Activations {
  const Q8Record* records = nullptr;  // [rows][cols / 32] in the fast lane
  const float* values = nullptr;      // [rows][cols] otherwise
};

// A run of activation rows and where their results go: row in_index[i] of the activations gives y + out_index[i] * stride
// (null: i itself).
struct Run {
  const Activations& x;
  const std::int32_t* in_index;
  const std::int32_t* out_index;
  int count;
  float* y;
  std::size_t stride;
};

// Rows [first, first + rows) of `w` times every activation row of the run; row `first` lands at offset 0 of a result.
void product_rows(
    const RowKernels& kernels, const QuantView& w, bool q8, int first, int rows, const Run& run) {
  const auto cols = static_cast<std::size_t>(w.cols);
  const Q8Record* records[kMaxTileTokens];
  const float* values[kMaxTileTokens];
  float* out[kMaxTileTokens];
  float* results[kMaxTileTokens];
  alignas(64) float partial[kMaxTileTokens][kGroupRows];
  const bool codes = has_codes(w.type);
  const auto fast = q8 ? kernels.fast(w.type) : nullptr;
  const auto exact = q8 ? nullptr : kernels.exact(w.type);
  int r = first;
  const int in_groups = w.layout == &kRows16 ? grouped_rows(w) : 0;
  if (q8 && run.count == 1 && r % kGroupRows == 0 && r < in_groups) {
    const int groups = (std::min(first + rows, in_groups) - r) / kGroupRows;
    const std::int32_t in = run.in_index != nullptr ? run.in_index[0] : 0;
    const std::int32_t to = run.out_index != nullptr ? run.out_index[0] : 0;
    kernels.fast_one(w.type)(w.row(r),
                             groups,
                             w.cols,
                             run.x.records + static_cast<std::size_t>(in) * (cols / kQ8Block),
                             run.y + static_cast<std::size_t>(to) * run.stride);
    r += groups * kGroupRows;
  }
  while (r < first + rows) {
    const int skip = codes ? r % kGroupRows : 0;
    const int take = codes ? std::min(kGroupRows - skip, first + rows - r) : 1;
    const bool in_place = !codes || take == kGroupRows;
    const std::byte* group = codes ? open_group(w, r / kGroupRows) : w.row(r);
    for (int from = 0; from < run.count; from += kernels.tile_tokens) {
      const int tile = std::min(kernels.tile_tokens, run.count - from);
      for (int t = 0; t < tile; ++t) {
        const auto in =
            static_cast<std::size_t>(run.in_index != nullptr ? run.in_index[from + t] : from + t);
        const auto to =
            static_cast<std::size_t>(run.out_index != nullptr ? run.out_index[from + t] : from + t);
        if (q8) {
          records[t] = run.x.records + in * (cols / kQ8Block);
        } else {
          values[t] = run.x.values + in * cols;
        }
        results[t] = run.y + to * run.stride + static_cast<std::size_t>(r - first);
        out[t] = in_place ? results[t] : partial[t];
      }
      if (q8) {
        fast(group, w.cols, records, out, tile);
      } else {
        exact(group, w.cols, values, out, tile);
      }
      if (in_place) continue;
      for (int t = 0; t < tile; ++t) {
        std::memcpy(results[t], partial[t] + skip, static_cast<std::size_t>(take) * sizeof(float));
      }
    }
    r += take;
  }
}

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
  auto* records = reinterpret_cast<Q8Record*>(workspace.data);
  for (int first = 0; first < tokens; first += kTokenPass) {
    const int count = std::min(kTokenPass, tokens - first);
    const auto from = static_cast<std::size_t>(first);
    Activations in;
    if (q8) {
      const std::size_t n = static_cast<std::size_t>(count) * cols;
      parallel_for(
          pool, n / kQ8Block, grain_for(256.0, kernels), [&](std::size_t begin, std::size_t end) {
            pack_records(w.type,
                         xq.codes + from * cols + begin * kQ8Block,
                         xq.scales + from * (cols / kQ8Block) + begin,
                         (end - begin) * kQ8Block,
                         records + begin);
          });
      in.records = records;
    } else {
      in.values = x + from * cols;
    }
    const std::size_t groups = (rows + kGroupRows - 1) / kGroupRows;
    const double macs = static_cast<double>(cols) * kGroupRows * count;
    parallel_for(pool, groups, grain_for(macs, kernels), [&](std::size_t begin, std::size_t end) {
      const std::size_t r = begin * kGroupRows;
      const std::size_t take = std::min(end * kGroupRows, rows) - r;
      product_rows(kernels,
                   w,
                   q8,
                   static_cast<int>(r),
                   static_cast<int>(take),
                   {in, nullptr, nullptr, count, y + from * rows + r, rows});
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
  Q8Record* x;           // [tokens][hidden / 32] when reads_q8
  Q8Record* u_records;   // [slots][width / 32] when down_reads_q8
  float* u;              // [slots][width] otherwise
  std::int32_t* begin;   // [experts + 1]
  std::int32_t* sorted;  // [slots], slot numbers of the whole call
  std::int32_t* token;   // [slots], the sorted slots' tokens within the pass
  std::int32_t* local;   // [slots], the sorted slots within the pass
};

std::size_t place(const ExpertFfn& c, std::byte* base, ExpertPass* pass) {
  const auto tokens = static_cast<std::size_t>(std::min(c.tokens, kExpertTokens));
  const std::size_t slots = tokens * static_cast<std::size_t>(c.top_k);
  const auto width = static_cast<std::size_t>(c.width);
  std::size_t at = 0;
  const auto take = [&](std::size_t bytes) {
    std::byte* here = base == nullptr ? nullptr : base + at;
    at += (bytes + 63) / 64 * 64;
    return here;
  };
  auto* x = take(
      c.reads_q8 ? tokens * static_cast<std::size_t>(c.hidden / kQ8Block) * sizeof(Q8Record) : 0);
  auto* records = take(c.down_reads_q8 ? slots * (width / kQ8Block) * sizeof(Q8Record) : 0);
  auto* u = take(c.down_reads_q8 ? 0 : slots * width * sizeof(float));
  auto* begin = take((static_cast<std::size_t>(c.experts) + 1) * sizeof(std::int32_t));
  auto* sorted = take(slots * sizeof(std::int32_t));
  auto* token = take(slots * sizeof(std::int32_t));
  auto* local = take(slots * sizeof(std::int32_t));
  if (pass != nullptr) {
    *pass = {reinterpret_cast<Q8Record*>(x),
             reinterpret_cast<Q8Record*>(records),
             reinterpret_cast<float*>(u),
             reinterpret_cast<std::int32_t*>(begin),
             reinterpret_cast<std::int32_t*>(sorted),
             reinterpret_cast<std::int32_t*>(token),
             reinterpret_cast<std::int32_t*>(local)};
  }
  return at;
}

// u of rows [f, f + 32 * blocks) for the sorted slots [from, from + count) of expert e; blocks * count <= kRunUnits.
void expert_step(const RowKernels& kernels,
                 const ExpertFfn& c,
                 const ExpertPass& pass,
                 const Activations& x,
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
  const auto g = c.gate_rows(e);
  const auto v = c.up_rows(e);
  const std::int32_t* tokens = pass.token + from;
  product_rows(
      kernels, *g.matrix, c.reads_q8, g.first + f, rows, {x, tokens, nullptr, count, gate, stride});
  product_rows(
      kernels, *v.matrix, c.reads_q8, v.first + f, rows, {x, tokens, nullptr, count, up, stride});
  kernels.geglu(gate, up, static_cast<std::size_t>(count) * stride, gate);
  std::int8_t codes[kRunUnits * kUnit];
  std::uint16_t scales[kRunUnits];
  if (c.down_reads_q8) quantize_q8(gate, static_cast<std::size_t>(count) * stride, codes, scales);
  for (int i = 0; i < count; ++i) {
    const auto slot = static_cast<std::size_t>(pass.local[from + i]);
    const std::size_t at = static_cast<std::size_t>(i) * stride;
    if (c.down_reads_q8) {
      const std::size_t to =
          slot * static_cast<std::size_t>(c.width / kUnit) + static_cast<std::size_t>(f / kUnit);
      pack_records(c.down.type, codes + at, scales + at / kUnit, stride, pass.u_records + to);
    } else {
      std::memcpy(pass.u + slot * static_cast<std::size_t>(c.width) + f,
                  gate + at,
                  static_cast<std::size_t>(rows) * sizeof(float));
    }
  }
}

}  // namespace

std::size_t expert_pass_bytes(const ExpertFfn& c) { return place(c, nullptr, nullptr); }

void run_expert_ffn(const RowKernels& kernels,
                    const ExpertFfn& c,
                    Workspace workspace,
                    HostPool* pool) {
  ExpertPass pass{};
  place(c, workspace.data, &pass);
  const auto hidden = static_cast<std::size_t>(c.hidden);
  const auto top_k = static_cast<std::size_t>(c.top_k);
  for (int first = 0; first < c.tokens; first += kExpertTokens) {
    const int count = std::min(kExpertTokens, c.tokens - first);
    const auto from = static_cast<std::size_t>(first);
    const std::size_t slots = static_cast<std::size_t>(count) * top_k;
    bucket_slots(c,
                 first,
                 count,
                 {pass.begin, static_cast<std::size_t>(c.experts) + 1},
                 {pass.sorted, slots});
    const std::int32_t filled = pass.begin[c.experts];
    for (std::int32_t i = 0; i < filled; ++i) {
      pass.local[i] = pass.sorted[i] - first * c.top_k;
      pass.token[i] = pass.local[i] / c.top_k;
    }
    Activations x;
    if (c.reads_q8) {
      const std::size_t row = hidden / kQ8Block;
      parallel_for(pool,
                   static_cast<std::size_t>(count) * row,
                   grain_for(256.0, kernels),
                   [&](std::size_t begin, std::size_t end) {
                     pack_records((c.fused ? c.gate_up : c.gate).type,
                                  c.xq.codes + (from * row + begin) * kQ8Block,
                                  c.xq.scales + from * row + begin,
                                  (end - begin) * kQ8Block,
                                  pass.x + begin);
                   });
      x.records = pass.x;
    } else {
      x.values = c.x + from * hidden;
    }

    // u. The steps of expert e are numbered block of f first, slot second, so that any cut leaves runs of slots.
    const int steps = (c.width + kUnit - 1) / kUnit;
    parallel_for(
        pool,
        static_cast<std::size_t>(filled) * static_cast<std::size_t>(steps),
        grain_for(2.0 * kUnit * static_cast<double>(hidden), kernels),
        [&](std::size_t begin, std::size_t end) {
          for (int e = 0; e < c.experts; ++e) {
            const std::int32_t bucket = pass.begin[e];
            const auto n = static_cast<std::size_t>(pass.begin[e + 1] - bucket);
            const std::size_t base =
                static_cast<std::size_t>(bucket) * static_cast<std::size_t>(steps);
            std::size_t at = std::max(begin, base);
            const std::size_t stop = std::min(end, base + n * static_cast<std::size_t>(steps));
            while (at < stop) {
              // One slot: as many blocks of rows as there are, in the order of memory. Else one block.
              const std::size_t f = (at - base) / n;
              const std::size_t slot = (at - base) % n;
              const std::size_t left = std::min(stop - at, static_cast<std::size_t>(kRunUnits));
              const std::size_t run = n == 1 ? left : std::min(left, n - slot);
              expert_step(kernels,
                          c,
                          pass,
                          x,
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
    Activations u;
    u.records = pass.u_records;
    u.values = pass.u;
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
                     for (int e = 0; e < c.experts; ++e) {
                       const std::int32_t bucket = pass.begin[e];
                       const std::int32_t n = pass.begin[e + 1] - bucket;
                       if (n == 0) continue;
                       const auto down = c.down_rows(e);
                       const std::int32_t* index = pass.local + bucket;
                       product_rows(kernels,
                                    *down.matrix,
                                    c.down_reads_q8,
                                    down.first + static_cast<int>(r),
                                    static_cast<int>(rows),
                                    {u, index, index, n, y, rows});
                     }
                     for (std::size_t t = 0; t < static_cast<std::size_t>(count); ++t) {
                       const std::size_t slot = (from + t) * top_k;
                       kernels.combine(c.ids + slot,
                                       c.weights + slot,
                                       c.top_k,
                                       y + t * top_k * rows,
                                       rows,
                                       rows,
                                       c.out + (from + t) * hidden + r);
                     }
                   }
                 });
  }
}

}  // namespace assay
