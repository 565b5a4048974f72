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

// Workspace of a product: for the activations of one pass, a pointer and a place each and, in the fast lane, records.
inline std::size_t activation_bytes(int tokens, int cols, bool q8) {
  const auto rows = static_cast<std::size_t>(std::min(tokens, kTokenPass));
  const std::size_t records = q8 ? static_cast<std::size_t>(cols / kQ8Block) * sizeof(Q8Record) : 0;
  return rows * (records + sizeof(void*) + sizeof(std::int32_t)) + 3 * 64;
}

// What an instruction set brings. A tile is 16 rows (a group, or for weights without codes one row) times any number of
// activation rows: the results of row x[t] go to y + to[t] * stride.
struct RowKernels {
  // x[t]: Q8Record [cols / 32]. 16 results.
  using FastTile = void (*)(const std::byte* group,
                            int cols,
                            const Q8Record* const* x,
                            const std::int32_t* to,
                            int tokens,
                            float* y,
                            std::size_t stride);
  // x[t]: float [cols]. 16 results, or one where the weights have no codes (then `group` is one row of the file).
  using ExactTile = void (*)(const std::byte* group,
                             int cols,
                             const float* const* x,
                             const std::int32_t* to,
                             int tokens,
                             float* y,
                             std::size_t stride);
  // One activation row and `groups` groups that lie one behind the other. y: 16 floats a group.
  using FastGroups =
      void (*)(const std::byte* group, int groups, int cols, const Q8Record* x, float* y);
  FastTile (*fast)(BlockType);  // of types with codes
  FastGroups (*fast_one)(BlockType);
  ExactTile (*exact)(BlockType);
  // Records of n activations for weights of the type.
  void (*pack)(BlockType,
               const std::int8_t* codes,
               const std::uint16_t* scales,
               std::size_t n,
               Q8Record* out);
  // u[i] = gelu_fixed(gate[i]) * up[i], n a multiple of 16.
  void (*geglu)(const float* gate, const float* up, std::size_t n, float* u);
  // out[t * out_stride + i] = fma over k in order of weights[t][k] and y[(t * top_k + k) * n + i], from +0; i < n. Slots
  // with id -1 are passed over. ids, weights: [tokens][top_k].
  void (*combine)(const std::int32_t* ids,
                  const float* weights,
                  int tokens,
                  int top_k,
                  const float* y,
                  std::size_t n,
                  float* out,
                  std::size_t out_stride);
  // Multiplications below which a second thread costs more than it brings: a few microseconds of them, because on a busy
  // machine a thread that is not running when its piece is due costs far more than the meeting itself.
  double macs_worth_a_thread;
};

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
