// y[t][r] = sum_c W[r][c] * x[t][c] in int8: codes of W times the int8 activations, 32 products a block in integers.
//
// A warp owns kRows rows at a time and walks over row groups with the stride of the grid. Its rows come in pieces of up to
// kPiece blocks, copied to its own shared memory by 16-byte asynchronous copies, the next piece (of the next rows, if need
// be) while this one is multiplied: some 3 KB a warp and 90 KB an SM on their way, which is what the memory's latency asks
// for; the two-byte loads that an 18-byte block allows would not get there. A lane takes a block of every 32; activations
// are read through L1 and serve all rows of the warp. No scratch. Shared memory: 2 stages * kRows pieces a warp, 28 KB a
// block for Q4_0, 53 KB for Q8_0. Bound: the weights' bytes.
// Weights without codes have no int8 product: float_kernel multiplies them as they lie, a warp a row, 16 bytes a lane at a
// time where rows of floats are so aligned (the router's are).
// Preconditions: the fast lane.
#include "kernels/base/staged_rows.cuh"
#include "kernels/base/warp_dot.cuh"
#include "kernels/gemv_quant/op.h"

namespace assay {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = 2;
constexpr int kPiece = 96;       // blocks of 32; a multiple of the 8 in a super-block
constexpr int kMaxBlocks = 924;  // of the grid: 7 a SM on a card of 132
constexpr int kStages = 2;

// TOKENS: 1, or 8 with the tokens beyond s.tokens passed over.
template <BlockType T, int TOKENS>
__global__ void __launch_bounds__(kWarps* kWarp)
    dot_kernel(GemvQuant::Shape s, GemvQuant::Args a, int piece, int pieces) {
  using device::Format;
  constexpr int kPerBlock = Format<T>::kElements / kQ8Block;
  const int blocks = s.cols / kQ8Block;
  const int piece_bytes = piece / kPerBlock * Format<T>::kBytes;
  const int room = device::staged_bytes(piece_bytes);
  std::byte* stages = dynamic_shared<std::byte>() + warp_id() * kStages * kRows * room;
  const std::byte* end = a.w.data + static_cast<std::size_t>(s.rows) * a.w.row_bytes;
  const int groups = (s.rows + kRows - 1) / kRows;
  const int stride = static_cast<int>(gridDim.x) * kWarps;

  const std::byte* staged[kStages][kRows] = {};
  const auto fetch = [&](int group, int index, int stage) {
    const int left = blocks - index * piece;
    const int bytes = (left < piece ? left : piece) / kPerBlock * Format<T>::kBytes;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Past the last row: the last row again, whose result is dropped.
      const int row = group * kRows + r < s.rows ? group * kRows + r : s.rows - 1;
      const std::byte* from =
          a.w.data + static_cast<std::size_t>(row) * a.w.row_bytes +
          static_cast<std::size_t>(index) * static_cast<std::size_t>(piece_bytes);
      staged[stage][r] =
          device::stage_row(stages + (stage * kRows + r) * room, from, bytes, a.w.data, end);
    }
    device::async_commit();
  };

  int group = static_cast<int>(blockIdx.x) * kWarps + warp_id();
  if (group >= groups) return;  // whole warps; there is no barrier of the block
  float sum[kRows][TOKENS] = {};
  fetch(group, 0, 0);
  int index = 0;
  for (int stage = 0; group < groups; stage ^= 1) {
    const int next_index = index + 1 < pieces ? index + 1 : 0;
    const int next_group = next_index > 0 ? group : group + stride;
    if (next_group < groups) {
      if (stage == 0) {
        fetch(next_group, next_index, 1);
      } else {
        fetch(next_group, next_index, 0);
      }
      device::async_wait<1>();
    } else {
      device::async_wait<0>();
    }
    __syncwarp();  // every lane's copies of this stage have arrived
    const int first = index * piece;
    const int count = blocks - first < piece ? blocks - first : piece;
    for (int b = lane_id(); b < count; b += kWarp) {
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        if (TOKENS > 1 && t >= s.tokens) break;
        int q[8];
        device::load_q8_block(
            a.xq.codes + static_cast<std::size_t>(t) * static_cast<std::size_t>(s.cols),
            first + b,
            q);
        const float dx = device::half_bits_to_float(
            a.xq.scales[static_cast<std::size_t>(t) * static_cast<std::size_t>(blocks) +
                        static_cast<std::size_t>(first + b)]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const std::byte* row = stage == 0 ? staged[0][r] : staged[1][r];
          sum[r][t] = device::add_term<T>(device::staged_term<T>(row, b, q), dx, sum[r][t]);
        }
      }
    }
    __syncwarp();  // the stage is read; the next fetch overwrites it
    if (index + 1 == pieces) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
          if (TOKENS > 1 && t >= s.tokens) break;
          const float total = warp_sum(sum[r][t]);
          sum[r][t] = 0.0F;
          const int row = group * kRows + r;
          if (lane_id() == 0 && row < s.rows) {
            a.y[static_cast<std::size_t>(t) * static_cast<std::size_t>(s.rows) +
                static_cast<std::size_t>(row)] = device::canonical_nan(total);
          }
        }
      }
    }
    index = next_index;
    group = next_group;
  }
}

constexpr int kFloatWarps = 4;

template <BlockType T>
__global__ void __launch_bounds__(kFloatWarps* kWarp)
    float_kernel(GemvQuant::Shape s, GemvQuant::Args a) {
  const int r = static_cast<int>(blockIdx.x) * kFloatWarps + warp_id();
  if (r >= s.rows) return;
  const std::byte* row = a.w.data + static_cast<std::size_t>(r) * a.w.row_bytes;
  const auto cols = static_cast<std::size_t>(s.cols);
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  for (int t = 0; t < s.tokens; ++t) {
    const float* x = a.x + static_cast<std::size_t>(t) * cols;
    float sum = 0.0F;
    if (T == BlockType::kF32 && s.cols % 4 == 0 && aligned(row) && aligned(x)) {
      const auto* w4 = reinterpret_cast<const float4*>(row);
      const auto* x4 = reinterpret_cast<const float4*>(x);
#pragma unroll 4
      for (int c = lane_id(); c < s.cols / 4; c += kWarp) {
        const float4 w = w4[c];
        const float4 v = x4[c];
        sum = __fmaf_rn(w.x, v.x, sum);
        sum = __fmaf_rn(w.y, v.y, sum);
        sum = __fmaf_rn(w.z, v.z, sum);
        sum = __fmaf_rn(w.w, v.w, sum);
      }
      sum = warp_sum(sum);
    } else {
      sum = device::dot_exact_warp<T>(row, x, s.cols);
    }
    if (lane_id() == 0) {
      a.y[static_cast<std::size_t>(t) * static_cast<std::size_t>(s.rows) +
          static_cast<std::size_t>(r)] = device::canonical_nan(sum);
    }
  }
}

template <BlockType T, int TOKENS>
void run(const GemvQuant::Shape& s, const GemvQuant::Args& a, Stream stream) {
  constexpr int kPerBlock = device::Format<T>::kElements / kQ8Block;
  const int blocks = s.cols / kQ8Block;
  const int pieces = (blocks + kPiece - 1) / kPiece;
  const int piece = ((blocks + pieces - 1) / pieces + kPerBlock - 1) / kPerBlock * kPerBlock;
  const int room = device::staged_bytes(piece / kPerBlock * device::Format<T>::kBytes);
  const unsigned wanted = blocks_for(static_cast<std::size_t>(s.rows), kWarps * kRows);
  launch(dot_kernel<T, TOKENS>,
         dim3(wanted < kMaxBlocks ? wanted : kMaxBlocks),
         dim3(kWarps * kWarp),
         static_cast<std::size_t>(kWarps * kStages * kRows * room),
         stream,
         s,
         a,
         piece,
         pieces);
}

}  // namespace

void launch_dp4a(const GemvQuant::Shape& s, const GemvQuant::Args& a, Workspace, Stream stream) {
  device::for_format(s.type, [&]<BlockType T>() {
    if constexpr (T == BlockType::kF32 || T == BlockType::kF16 || T == BlockType::kBF16) {
      launch(float_kernel<T>,
             dim3(blocks_for(static_cast<std::size_t>(s.rows), kFloatWarps)),
             dim3(kFloatWarps * kWarp),
             0,
             stream,
             s,
             a);
    } else if (s.tokens == 1) {
      run<T, 1>(s, a, stream);
    } else {
      run<T, 8>(s, a, stream);
    }
  });
}

}  // namespace assay
