// y[t][r] = sum_c W[r][c] * x[t][c] in int8: codes of W times the int8 activations, 32 products a block in integers.
//
// A warp owns kRows rows. They come to its own shared memory by 16-byte asynchronous copies, whole where they fit kRowBytes,
// so that all that a warp will ever read is on its way at once: the two-byte loads that an 18-byte block allows would not get
// there. Many small blocks, in no loop: while one multiplies, its neighbours on the SM wait for memory. A lane takes a block of
// every 32; activations are read through L1 and serve all rows of the warp. No scratch. Shared memory: 13 KB a block for 2,816
// columns of Q4_0, 41 KB at most. Bound: the weights' bytes.
// The weights are asked for before the kernel waits for the one that computes the activations (launch_early).
// Weights without codes have no int8 product: float_kernel multiplies them as they lie (the router's are floats).
// Preconditions: the fast lane.
#include "kernels/base/staged_rows.cuh"
#include "kernels/base/warp_dot.cuh"
#include "kernels/gemv_quant/op.h"

namespace assay {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = 2;
constexpr int kRowBytes = 5 * 1024;  // of a row in shared memory at a time

// TOKENS: 1, or 8 with the tokens beyond s.tokens passed over.
template <BlockType T, int TOKENS>
__global__ void __launch_bounds__(kWarps* kWarp)
    dot_kernel(GemvQuant::Shape s, GemvQuant::Args a, int piece, int pieces) {
  using device::Format;
  constexpr int kPerBlock = Format<T>::kElements / kQ8Block;
  device::let_later_start();
  const int first = (static_cast<int>(blockIdx.x) * kWarps + warp_id()) * kRows;
  if (first >= s.rows) return;  // whole warps; there is no barrier of the block
  const int blocks = s.cols / kQ8Block;
  const int piece_bytes = piece / kPerBlock * Format<T>::kBytes;
  const int room = device::staged_bytes(piece_bytes);
  std::byte* stage = dynamic_shared<std::byte>() + warp_id() * kRows * room;
  const std::byte* end = a.w.data + static_cast<std::size_t>(s.rows) * a.w.row_bytes;

  float sum[kRows][TOKENS] = {};
  for (int index = 0; index < pieces; ++index) {
    const int before = index * piece;
    const int count = blocks - before < piece ? blocks - before : piece;
    const std::byte* staged[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Past the last row: the last row again, whose result is dropped.
      const int row = first + r < s.rows ? first + r : s.rows - 1;
      staged[r] = device::stage_row(
          stage + r * room,
          a.w.data + static_cast<std::size_t>(row) * a.w.row_bytes +
              static_cast<std::size_t>(index) * static_cast<std::size_t>(piece_bytes),
          count / kPerBlock * Format<T>::kBytes,
          a.w.data,
          end);
    }
    device::async_commit();
    if (index == 0) device::wait_for_earlier();
    device::async_wait<0>();
    __syncwarp();  // every lane's copies have arrived
    for (int b = lane_id(); b < count; b += kWarp) {
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        if (TOKENS > 1 && t >= s.tokens) break;
        int q[8];
        device::load_q8_block(
            a.xq.codes + static_cast<std::size_t>(t) * static_cast<std::size_t>(s.cols),
            before + b,
            q);
        const float dx = device::half_bits_to_float(
            a.xq.scales[static_cast<std::size_t>(t) * static_cast<std::size_t>(blocks) +
                        static_cast<std::size_t>(before + b)]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          sum[r][t] = device::add_term<T>(device::staged_term<T>(staged[r], b, q), dx, sum[r][t]);
        }
      }
    }
    __syncwarp();  // the piece is read; the next fetch overwrites it
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      if (TOKENS > 1 && t >= s.tokens) break;
      const float total = warp_sum(sum[r][t]);
      if (lane_id() == 0 && first + r < s.rows) {
        a.y[static_cast<std::size_t>(t) * static_cast<std::size_t>(s.rows) +
            static_cast<std::size_t>(first + r)] = device::canonical_nan(total);
      }
    }
  }
}

constexpr int kFloatWarps = 4;
constexpr int kAhead = 8;  // pieces of 16 bytes of a row of floats that a thread asks for at once

// A block a row. Rows of floats that are so aligned are read 16 bytes a lane at a time.
template <BlockType T>
__global__ void __launch_bounds__(kFloatWarps* kWarp)
    float_kernel(GemvQuant::Shape s, GemvQuant::Args a) {
  device::let_later_start();
  __shared__ float warps[kFloatWarps];
  constexpr int kThreads = kFloatWarps * kWarp;
  const auto r = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const std::byte* row = a.w.data + static_cast<std::size_t>(r) * a.w.row_bytes;
  const auto cols = static_cast<std::size_t>(s.cols);
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const bool wide = T == BlockType::kF32 && s.cols % 4 == 0 && aligned(row) && aligned(a.x);
  const int pieces = wide ? s.cols / 4 : 0;
  const auto* w4 = reinterpret_cast<const float4*>(row);
  float4 ahead[kAhead];  // the row's first pieces
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const int c = thread + k * kThreads;
    ahead[k] = c < pieces ? w4[c] : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  }
  device::wait_for_earlier();
  for (int t = 0; t < s.tokens; ++t) {
    const float* x = a.x + static_cast<std::size_t>(t) * cols;
    const auto* x4 = reinterpret_cast<const float4*>(x);
    float sum = 0.0F;
    const auto add = [&](const float4& w, const float4& v) {
      sum = __fmaf_rn(w.x, v.x, sum);
      sum = __fmaf_rn(w.y, v.y, sum);
      sum = __fmaf_rn(w.z, v.z, sum);
      sum = __fmaf_rn(w.w, v.w, sum);
    };
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int c = thread + k * kThreads;
      if (c < pieces) add(ahead[k], x4[c]);
    }
    for (int c = thread + kAhead * kThreads; c < pieces; c += kThreads) add(w4[c], x4[c]);
    for (int c = wide ? s.cols : thread; c < s.cols; c += kThreads) {
      sum = __fmaf_rn(device::element<T>(row, c), x[c], sum);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) warps[warp_id()] = sum;
    __syncthreads();  // every warp's sum is written
    if (thread == 0) {
      float total = warps[0];
      for (int w = 1; w < kFloatWarps; ++w) total = __fadd_rn(total, warps[w]);
      a.y[static_cast<std::size_t>(t) * static_cast<std::size_t>(s.rows) +
          static_cast<std::size_t>(r)] = device::canonical_nan(total);
    }
    __syncthreads();  // the sums are read
  }
}

template <BlockType T, int TOKENS>
void run(const GemvQuant::Shape& s, const GemvQuant::Args& a, Stream stream) {
  constexpr int kPerBlock = device::Format<T>::kElements / kQ8Block;
  const int blocks = s.cols / kQ8Block;
  const int most = kRowBytes / device::Format<T>::kBytes * kPerBlock;
  const int pieces = (blocks + most - 1) / most;
  const int piece = ((blocks + pieces - 1) / pieces + kPerBlock - 1) / kPerBlock * kPerBlock;
  const int room = device::staged_bytes(piece / kPerBlock * device::Format<T>::kBytes);
  launch_early(dot_kernel<T, TOKENS>,
               dim3(blocks_for(static_cast<std::size_t>(s.rows), kWarps * kRows)),
               dim3(kWarps * kWarp),
               static_cast<std::size_t>(kWarps * kRows * room),
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
      launch_early(float_kernel<T>,
                   dim3(static_cast<unsigned>(s.rows)),
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
