// Products with quantised matrices on the host, 16 rows at a time: the weight layout, the table of kernels that an
// instruction set brings, and the drivers that cut the work and walk over it. All of it follows quant_dot.h to the bit.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/blocks.h"
#include "kernels/base/expert_ffn.h"
#include "kernels/base/registry.h"
#include "kernels/base/stream.h"

namespace assay {

inline constexpr int kGroupRows = 16;

// Weights with codes, 16 rows interleaved so that a vector lane is a row; as many bytes as the file's layout, so one
// copy serves gemv_quant, gemm_quant and the experts, AVX2 (half a line) and AVX-512 (a line) alike.
//
// rows 16g .. 16g+15 are one group of 16 * row_bytes. A block's bytes are cut into 4-byte units in file order, leaving
// out its fp16 fields (d, m, dmin); unit u of all 16 rows is one 64-byte line:
//
//   block 0: | unit 0: row 0 | row 1 | .. | row 15 | unit 1: row 0 | ..      one line a unit, for all blocks
//   then, for all blocks: d of rows 0..15 (32 bytes), then m or dmin of rows 0..15 where the type has one
//
// Only the fifth bits of Q5_0 and Q5_1 change inside their unit: bit 8k + j holds the bit of element 4j + k. The last
// rows % 16 rows stay as in the file, after the groups.
extern const Layout kRows16;

// One activation block of the fast lane as the kernels read it.
struct Q8Record {
  std::int8_t codes[32];
  float scale;  // the fp16 scale, widened
  // What the weight's format needs beside the products: Q4_0, Q5_0, Q8_0: minus the offset times the sum of the codes
  // (int32). Types with a minimum: the sum (float). Q6_K: the sums of elements 0..15 and 16..31 (two int16).
  std::uint32_t correction;
};

// Tokens that a matrix product takes at a time.
inline constexpr int kTokenPass = 512;

// Workspace of a product: the activations of one pass as records; none in the exact lane.
inline std::size_t activation_bytes(int tokens, int cols, bool q8) {
  if (!q8) return 0;
  return static_cast<std::size_t>(std::min(tokens, kTokenPass)) *
         static_cast<std::size_t>(cols / kQ8Block) * sizeof(Q8Record);
}

// What an instruction set brings. A tile is 16 rows (a group, or for weights without codes one row) times up to
// `tile_tokens` activation rows.
struct RowKernels {
  // x[t]: Q8Record [cols / 32]. y[t]: 16 floats.
  using FastTile = void (*)(
      const std::byte* group, int cols, const Q8Record* const* x, float* const* y, int tokens);
  // x[t]: float [cols]. y[t]: 16 floats, or one where the weights have no codes (then `group` is one row of the file).
  using ExactTile = void (*)(
      const std::byte* group, int cols, const float* const* x, float* const* y, int tokens);
  // The same for one activation row and `groups` groups that lie one behind the other. y: 16 floats a group.
  using FastGroups =
      void (*)(const std::byte* group, int groups, int cols, const Q8Record* x, float* y);
  FastTile (*fast)(BlockType);  // of types with codes
  FastGroups (*fast_one)(BlockType);
  ExactTile (*exact)(BlockType);
  int tile_tokens;
  // u[i] = gelu_fixed(gate[i]) * up[i], n a multiple of 8.
  void (*geglu)(const float* gate, const float* up, std::size_t n, float* u);
  // out[i] = fma over k in order of weights[k] and y[k * stride + i], from +0; i < n. Slots with id -1 are passed over.
  void (*combine)(const std::int32_t* ids,
                  const float* weights,
                  int top_k,
                  const float* y,
                  std::size_t stride,
                  std::size_t n,
                  float* out);
  // Multiplications below which a second thread costs more than it brings.
  double macs_worth_a_thread;
};
inline constexpr int kMaxTileTokens = 16;

// y [tokens][w.rows] = x times w; x [tokens][w.cols], or xq when q8. Weights may be in any layout; kRows16 is fast.
void multiply_rows(const RowKernels& kernels,
                   const QuantView& w,
                   bool q8,
                   const float* x,
                   const Q8View& xq,
                   int tokens,
                   float* y,
                   Workspace workspace,
                   HostPool* pool);

// The routed experts (expert_ffn.h) with the same tiles; the workspace is expert_ffn_workspace_bytes, which is at least
// expert_pass_bytes.
std::size_t expert_pass_bytes(const ExpertFfn& c);
void run_expert_ffn(const RowKernels& kernels,
                    const ExpertFfn& c,
                    Workspace workspace,
                    HostPool* pool);

}  // namespace assay
