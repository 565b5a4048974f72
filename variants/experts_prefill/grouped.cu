// out[t] = sum over ranks of weight * Down_e (gelu(Gate_e x) * Up_e x), all experts in one grid of tensor-core tiles.
//
// bucket_kernel (one block) sorts the slots (token, rank) by expert and lists the tiles; half_rows.cuh brings x to half.
// tile_kernel<gate/up>: a block owns kTileRows slots of one expert and kTileCols rows of its weights, half of them gate and
// half the same rows of up, so that GeGLU happens in registers; u goes out in float, then to half. tile_kernel<down>: the
// same over u; a row of y belongs to one slot. combine_kernel: a thread an output adds a token's ranks in order. Which place
// a slot got in its bucket changes no bit.
// A tile steps through the columns 32 at a time: weights are expanded from their codes to half on the way into shared memory
// (the next step's are loaded while this one is multiplied), 8 warps of 32 x 32 outputs each multiply with mma.sync. Rows
// in shared memory are 80 bytes apart, which spreads 8 rows over all banks. Shared memory: two buffers of 15 KB.
// Six launches a pass of kGroupedTokens tokens, nothing read by the host. Bound: mma.sync and the expansion of the codes.
// Preconditions: sm_80, the fast lane, hidden size and width multiples of 32, at most 1,024 experts.
#include "kernels/base/blocks.cuh"
#include "kernels/base/half_rows.cuh"
#include "kernels/base/mma.cuh"
#include "kernels/experts_prefill/grouped.h"

namespace assay {
namespace {

using experts_prefill::GroupedScratch;
using experts_prefill::kTileRows;

constexpr int kThreads = 256;
constexpr int kBucketThreads = 1024;
constexpr int kTileCols = 128;
constexpr int kDepth = 32;  // columns of a step: one block of the codes
constexpr int kRowHalves = kDepth + 8;
constexpr int kRowWords = kRowHalves / 2;

// begin[e]: first place of expert e; slots: by expert; tiles[i]: expert * 2^16 + tile within the expert, -1 past the last.
__global__ void __launch_bounds__(kBucketThreads) bucket_kernel(
    const std::int32_t* ids, int count, int experts, int max_tiles, GroupedScratch p) {
  __shared__ int size[experts_prefill::kMaxExperts];
  __shared__ int next[experts_prefill::kMaxExperts];
  const int i = static_cast<int>(threadIdx.x);
  for (int e = i; e < experts; e += kBucketThreads) size[e] = 0;
  __syncthreads();  // the sizes are zero
  for (int s = i; s < count; s += kBucketThreads) {
    if (ids[s] >= 0) atomicAdd(&size[ids[s]], 1);
  }
  __syncthreads();  // the sizes are counted
  if (i == 0) {
    int place = 0;
    int tiles = 0;
    for (int e = 0; e < experts; ++e) {
      p.begin[e] = place;
      next[e] = place;
      place += size[e];
      for (int t = 0; t * kTileRows < size[e]; ++t) p.tiles[tiles++] = (e << 16) | t;
    }
    p.begin[experts] = place;
    for (; tiles < max_tiles; ++tiles) p.tiles[tiles] = -1;
  }
  __syncthreads();  // the places are known
  for (int s = i; s < count; s += kBucketThreads) {
    if (ids[s] >= 0) p.slots[atomicAdd(&next[ids[s]], 1)] = s;
  }
}

// Eight bytes of codes and their scale, or sixteen halves: a thread's share of the weights of one step.
template <BlockType T>
struct Share {
  std::uint32_t pair[8];
  __device__ void load(const std::byte* row, int block, int half) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // Columns 8 half .. + 7, then 16 + 8 half .. + 7: what eight bytes of a block of nibbles hold.
      const int c = block * kDepth + 16 * (i / 4) + 8 * half + 2 * (i % 4);
      pair[i] = device::half_pair(device::element<T>(row, c), device::element<T>(row, c + 1));
    }
  }
  __device__ void expand(std::uint32_t (&out)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = pair[i];
  }
};
template <>
struct Share<BlockType::kQ4_0> {
  std::uint32_t codes[2];
  std::uint16_t scale;
  __device__ void load(const std::byte* row, int block, int half) {
    const std::byte* p =
        row + static_cast<std::size_t>(block) * device::Format<BlockType::kQ4_0>::kBytes;
    scale = device::load16(p);
    codes[0] = device::load32(p + 2 + 8 * half);
    codes[1] = device::load32(p + 6 + 8 * half);
  }
  __device__ void expand(std::uint32_t (&out)[8]) const {
    const float d = device::half_bits_to_float(scale);
    const auto value = [&](int byte, int shift) {
      const auto q = static_cast<int>((codes[byte / 4] >> (8 * (byte % 4) + shift)) & 15U);
      return __fmul_rn(d, static_cast<float>(q - 8));
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int byte = 2 * (i % 4);
      const int shift = i < 4 ? 0 : 4;
      out[i] = device::half_pair(value(byte, shift), value(byte + 1, shift));
    }
  }
};

// Where tile row or tile column i of the weights lies: gate and up in turns of 16, so that one warp's 32 columns hold both.
template <bool kGateUp>
__device__ inline const std::byte* weight_row(
    const ExpertsPrefill::Shape& s, const ExpertsPrefill::Args& a, int e, int block_col, int i) {
  if constexpr (kGateUp) {
    int f = block_col * (kTileCols / 2) + i / 32 * 16 + i % 16;
    if (f >= s.width) f = s.width - 1;  // computed with the others and dropped
    const bool up = i / 16 % 2 != 0;
    const QuantView& w = s.fused ? a.gate_up : up ? a.up : a.gate;
    const int row = s.fused ? 2 * s.width * e + (up ? s.width : 0) + f : s.width * e + f;
    return w.data + static_cast<std::size_t>(row) * w.row_bytes;
  } else {
    int r = block_col * kTileCols + i;
    if (r >= s.hidden) r = s.hidden - 1;
    return a.down.data + static_cast<std::size_t>(s.hidden * e + r) * a.down.row_bytes;
  }
}

template <BlockType T, bool kGateUp>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(ExpertsPrefill::Shape s, ExpertsPrefill::Args a, GroupedScratch p) {
  alignas(16) __shared__ std::uint32_t left[2][kTileRows * kRowWords];
  alignas(16) __shared__ std::uint32_t right[2][kTileCols * kRowWords];
  const int tile = p.tiles[blockIdx.y];
  if (tile < 0) return;  // the whole block
  const int e = tile >> 16;
  const int first = p.begin[e] + (tile & 0xFFFF) * kTileRows;  // place of the tile's first slot
  const int count = p.begin[e + 1] - first < kTileRows ? p.begin[e + 1] - first : kTileRows;
  const int cols = kGateUp ? s.hidden : s.width;
  const int steps = cols / kDepth;
  const int i = static_cast<int>(threadIdx.x);

  // This thread's share of a step: 8 columns of one row of x or u, and half a block of one row of the weights.
  const int a_row = i / 4;
  const int a_place = first + (a_row < count ? a_row : count - 1);  // past the last: dropped
  const std::size_t a_source =
      static_cast<std::size_t>(kGateUp ? p.slots[a_place] / s.top_k : a_place);
  const std::uint16_t* a_from =
      (kGateUp ? p.x : p.u_half) + a_source * static_cast<std::size_t>(cols) + 8 * (i % 4);
  const int b_row = i / 2;
  const std::byte* b_from = weight_row<kGateUp>(s, a, e, static_cast<int>(blockIdx.x), b_row);
  uint4 a_next;
  Share<T> b_next;
  const auto load = [&](int step) {
    a_next = *reinterpret_cast<const uint4*>(a_from + static_cast<std::size_t>(step) * kDepth);
    b_next.load(b_from, step, i % 2);
  };
  const auto store = [&](int buffer) {
    *reinterpret_cast<uint4*>(&left[buffer][a_row * kRowWords + 4 * (i % 4)]) = a_next;
    std::uint32_t out[8];
    b_next.expand(out);
    std::uint32_t* to = &right[buffer][b_row * kRowWords + 4 * (i % 2)];
    *reinterpret_cast<uint4*>(to) = make_uint4(out[0], out[1], out[2], out[3]);
    *reinterpret_cast<uint4*>(to + 8) = make_uint4(out[4], out[5], out[6], out[7]);
  };

  const int g = lane_id() / 4;
  const int q = lane_id() % 4;
  const int row0 = warp_id() / 4 * 32;  // of the warp's 32 x 32 outputs
  const int col0 = warp_id() % 4 * 32;
  float d[2][4][4] = {};
  load(0);
  store(0);
  for (int step = 0; step < steps; ++step) {
    const int buffer = step % 2;
    if (step + 1 < steps) load(step + 1);
    __syncthreads();  // this step is in shared memory, and the other buffer is read
#pragma unroll
    for (int k = 0; k < kDepth / 2; k += 8) {  // words: 16 columns
      std::uint32_t fa[2][4];
      std::uint32_t fb[4][2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const std::uint32_t* from = &left[buffer][(row0 + 16 * m + g) * kRowWords + k + q];
        fa[m][0] = from[0];
        fa[m][1] = from[8 * kRowWords];
        fa[m][2] = from[4];
        fa[m][3] = from[8 * kRowWords + 4];
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const std::uint32_t* from = &right[buffer][(col0 + 8 * n + g) * kRowWords + k + q];
        fb[n][0] = from[0];
        fb[n][1] = from[4];
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) device::mma_f16(d[m][n], fa[m], fb[n]);
      }
    }
    if (step + 1 < steps) store(1 - buffer);
  }

#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + 16 * m + 8 * half + g;
      if (row >= count) continue;
      const int place = first + row;
      const int slot = p.slots[place];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (kGateUp) {
          const float scale = p.x_scales[slot / s.top_k];
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            // Columns 0 .. 15 of the warp are gate, 16 .. 31 up.
            const int f = static_cast<int>(blockIdx.x) * (kTileCols / 2) + warp_id() % 4 * 16 +
                          8 * n + 2 * q + j;
            if (f >= s.width) continue;
            const float gate = __fmul_rn(d[m][n][2 * half + j], scale);
            const float up = __fmul_rn(d[m][n + 2][2 * half + j], scale);
            p.u[static_cast<std::size_t>(place) * static_cast<std::size_t>(s.width) +
                static_cast<std::size_t>(f)] = __fmul_rn(device::gelu_fixed(gate), up);
          }
        } else {
          const float scale = p.u_scales[place];
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int r = static_cast<int>(blockIdx.x) * kTileCols + col0 + 8 * n + 2 * q + j;
            if (r >= s.hidden) continue;
            p.y[static_cast<std::size_t>(slot) * static_cast<std::size_t>(s.hidden) +
                static_cast<std::size_t>(r)] = __fmul_rn(d[m][n][2 * half + j], scale);
          }
        }
      }
    }
  }
}

// A block a token.
__global__ void __launch_bounds__(kThreads)
    combine_kernel(ExpertsPrefill::Shape s, ExpertsPrefill::Args a, GroupedScratch p) {
  const std::size_t slot = blockIdx.x * static_cast<std::size_t>(s.top_k);
  const auto hidden = static_cast<std::size_t>(s.hidden);
  for (int c = static_cast<int>(threadIdx.x); c < s.hidden; c += kThreads) {
    float sum = 0.0F;
    for (int k = 0; k < s.top_k; ++k) {
      const std::size_t at = slot + static_cast<std::size_t>(k);
      if (a.ids[at] < 0) continue;
      sum = __fmaf_rn(a.weights[at], p.y[at * hidden + static_cast<std::size_t>(c)], sum);
    }
    a.out[blockIdx.x * hidden + static_cast<std::size_t>(c)] = device::canonical_nan(sum);
  }
}

}  // namespace

void launch_grouped(const ExpertsPrefill::Shape& whole,
                    const ExpertsPrefill::Args& all,
                    Workspace workspace,
                    Stream stream) {
  using experts_prefill::kGroupedTokens;
  const GroupedScratch p = experts_prefill::grouped_scratch(whole, workspace.data);
  for (int first = 0; first < whole.tokens; first += kGroupedTokens) {
    ExpertsPrefill::Shape s = whole;
    s.tokens = whole.tokens - first < kGroupedTokens ? whole.tokens - first : kGroupedTokens;
    ExpertsPrefill::Args a = all;
    const auto tokens = static_cast<std::size_t>(s.tokens);
    a.ids += static_cast<std::size_t>(first) * static_cast<std::size_t>(s.top_k);
    a.weights += static_cast<std::size_t>(first) * static_cast<std::size_t>(s.top_k);
    a.x += static_cast<std::size_t>(first) * static_cast<std::size_t>(s.hidden);
    a.out += static_cast<std::size_t>(first) * static_cast<std::size_t>(s.hidden);
    const int slots = s.tokens * s.top_k;
    const int tiles = experts_prefill::most_tiles(s);
    launch(
        bucket_kernel, dim3(1), dim3(kBucketThreads), 0, stream, a.ids, slots, s.experts, tiles, p);
    device::halve_rows(a.x, tokens, s.hidden, p.x, p.x_scales, nullptr, stream);
    device::for_format(s.gate_up_type, [&]<BlockType T>() {
      launch(tile_kernel<T, true>,
             dim3(blocks_for(static_cast<std::size_t>(s.width), kTileCols / 2),
                  static_cast<unsigned>(tiles)),
             dim3(kThreads),
             0,
             stream,
             s,
             a,
             p);
    });
    device::halve_rows(p.u,
                       static_cast<std::size_t>(slots),
                       s.width,
                       p.u_half,
                       p.u_scales,
                       p.begin + s.experts,
                       stream);
    device::for_format(s.down_type, [&]<BlockType T>() {
      launch(tile_kernel<T, false>,
             dim3(blocks_for(static_cast<std::size_t>(s.hidden), kTileCols),
                  static_cast<unsigned>(tiles)),
             dim3(kThreads),
             0,
             stream,
             s,
             a,
             p);
    });
    launch(
        combine_kernel, dim3(static_cast<unsigned>(s.tokens)), dim3(kThreads), 0, stream, s, a, p);
  }
}

}  // namespace assay
