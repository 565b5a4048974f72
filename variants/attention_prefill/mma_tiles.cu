// o[t][h] = softmax(q[t][h] . k) v over the keys that token t sees, in tensor-core tiles with half operands.
//
// The query rows of one KV head, (token, head of the group) in that order, are cut into tiles of 64; a block owns a tile and
// walks over the keys that any of its rows sees, 32 at a time. Warp w owns rows 16 (w mod 4) .. + 15 of the tile; heads of
// 512 have two warps for the same rows: each scores half of the keys (the scores meet in shared memory) and accumulates half
// of the head. Keys and values come by cp.async; the next keys are on their way while this step's values are multiplied.
// The latest tiles, which see the most keys, start first. Running maximum and sum in float (the same exp as everywhere).
// Rows in shared memory are padded by 16 bytes, which spreads the 8 rows of a fragment over all banks.
// Shared memory: (64 + 2 * 32) rows of head_dim + 8 halves, and 64 x 36 floats for heads of 512: 34, 68 and 142 KB at 128,
// 256 and 512. Registers: 128 accumulators a lane. Bound: mma.sync and the reads of shared memory that feed it.
// Preconditions: sm_80, keys and values in half, head size 64, 128, 256 or 512, that much shared memory.
// A NaN or an infinite value also spoils the rows of its tile that do not see it: 0 * infinity.
#include "kernels/attention_prefill/call.cuh"
#include "kernels/attention_prefill/mma_tiles.h"
#include "kernels/base/async_copy.cuh"
#include "kernels/base/mma.cuh"

namespace assay {
namespace {

using attention_prefill::kTileKeys;
using attention_prefill::kTileQueries;
using attention_prefill::MmaTile;
using device::minus_infinity;

// The B fragments of 16 keys by 16 neighbouring dimensions of V: two products' worth. `at`: the first key's first dimension.
__device__ inline void load_values(const std::uint16_t* at,
                                   int stride,
                                   std::uint32_t (&b0)[2],
                                   std::uint32_t (&b1)[2]) {
  const int lane = lane_id();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto address =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(at + lane % 16 * stride + lane / 16 * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b0[0]), "=r"(b0[1]), "=r"(b1[0]), "=r"(b1[1])
               : "r"(address));
#else
  const std::uint16_t* from = at + lane % 4 * 2 * stride + lane / 4;
  const auto pair = [&](const std::uint16_t* p) {
    return static_cast<std::uint32_t>(p[0]) | (static_cast<std::uint32_t>(p[stride]) << 16);
  };
  b0[0] = pair(from);
  b0[1] = pair(from + 8 * stride);
  b1[0] = pair(from + 8);
  b1[1] = pair(from + 8 * stride + 8);
#endif
}

template <int HD>
__global__ void __launch_bounds__(MmaTile<HD>::kThreads)
    mma_kernel(device::AttendCall<std::uint16_t> c) {
  using Tile = MmaTile<HD>;
  constexpr int kStride = Tile::kStride;           // halves from row to row
  constexpr int kDims = HD / Tile::kParts;         // of a warp's output
  constexpr int kKeyTiles = kTileKeys / 8;         // of 8 keys
  constexpr int kMine = kKeyTiles / Tile::kParts;  // that a warp scores
  constexpr int kScores = kTileKeys + 4;           // floats from row to row of the exchange
  auto* q = dynamic_shared<std::uint16_t>();       // [kTileQueries][kStride]
  std::uint16_t* k = q + kTileQueries * kStride;   // [kTileKeys][kStride]
  std::uint16_t* v = k + kTileKeys * kStride;      // [kTileKeys][kStride]
  auto* scores = reinterpret_cast<float*>(v + kTileKeys * kStride);  // [kTileQueries][kScores]
  const int i = static_cast<int>(threadIdx.x);
  const int group = c.heads / c.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int rows = c.tokens * group;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileQueries;
  const int last = first + kTileQueries < rows ? first + kTileQueries - 1 : rows - 1;
  const auto source = [&](int row) { return c.row(row / group, kv_head * group + row % group); };
  for (int n = i; n < kTileQueries * (HD / 2); n += Tile::kThreads) {
    const int r = n / (HD / 2);
    const int d = n % (HD / 2) * 2;
    float2 x = make_float2(0.0F, 0.0F);  // rows past the last: computed, never written
    if (first + r <= last) x = device::widen2(c.q + source(first + r) + d);
    *reinterpret_cast<std::uint32_t*>(q + r * kStride + d) = device::half_pair(x.x, x.y);
  }

  const std::size_t offset = static_cast<std::size_t>(kv_head) * HD;
  const int begin = c.oldest(first / group);
  const int end = c.position(last / group) + 1;
  // Keys (or values) from position j0 on; zeros past the end, for 0 * garbage may be NaN.
  const auto fetch = [&](std::uint16_t* to, int j0, bool values) {
    constexpr int kPieces = HD / 8;
    for (int n = i; n < kTileKeys * kPieces; n += Tile::kThreads) {
      const int r = n / kPieces;
      const int d = n % kPieces * 8;
      std::uint16_t* at = to + r * kStride + d;
      if (j0 + r < end) {
        const auto run = c.keys.run(j0 + r, j0 + r + 1, offset);
        device::async_copy16(reinterpret_cast<std::byte*>(at),
                             reinterpret_cast<const std::byte*>((values ? run.v : run.k) + d));
      } else {
        *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
      }
    }
    device::async_commit();
  };

  const int warp_rows = warp_id() % 4 * 16;
  const int part = warp_id() / 4;
  const int g = lane_id() / 4;
  const int p = lane_id() % 4;
  int newest[2];  // positions of this lane's two rows
  int oldest[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + warp_rows + g + 8 * h;
    const int token = (row <= last ? row : last) / group;
    newest[h] = c.position(token);
    oldest[h] = c.oldest(token);
  }
  float maximum[2] = {minus_infinity(), minus_infinity()};
  float sum[2] = {0.0F, 0.0F};  // of this lane's columns
  float acc[kDims / 8][4] = {};

  fetch(k, begin, false);
  for (int j0 = begin; j0 < end; j0 += kTileKeys) {
    __syncthreads();  // the last step's values are read (and, at first, the queries are staged)
    fetch(v, j0, true);
    device::async_wait<1>();
    __syncthreads();  // the keys have arrived

    float s[kKeyTiles][4] = {};
#pragma unroll 4
    for (int d = 0; d < HD; d += 16) {
      std::uint32_t a[4];
      const auto word = [&](const std::uint16_t* row) {
        return *reinterpret_cast<const std::uint32_t*>(row + d + 2 * p);
      };
      const std::uint16_t* mine = q + (warp_rows + g) * kStride;
      a[0] = word(mine);
      a[1] = word(mine + 8 * kStride);
      a[2] = word(mine + 8);
      a[3] = word(mine + 8 * kStride + 8);
#pragma unroll
      for (int n = 0; n < kMine; ++n) {
        const std::uint16_t* key = k + (8 * (part * kMine + n) + g) * kStride;
        const std::uint32_t b[2] = {word(key), word(key + 8)};
        device::mma_f16(s[n], a, b);
      }
    }
    if constexpr (Tile::kParts > 1) {
#pragma unroll
      for (int n = 0; n < kMine; ++n) {
        float* to = scores + (warp_rows + g) * kScores + 8 * (part * kMine + n) + 2 * p;
        to[0] = s[n][0];
        to[1] = s[n][1];
        to[8 * kScores] = s[n][2];
        to[8 * kScores + 1] = s[n][3];
      }
    }
    __syncthreads();  // the keys are read, the scores of both halves are written
    if (j0 + kTileKeys < end) {
      fetch(k, j0 + kTileKeys, false);
    } else {
      device::async_commit();  // an empty group, so that the wait below means the values
    }
    if constexpr (Tile::kParts > 1) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const float* from = scores + (warp_rows + g) * kScores + 8 * n + 2 * p;
        s[n][0] = from[0];
        s[n][1] = from[1];
        s[n][2] = from[8 * kScores];
        s[n][3] = from[8 * kScores + 1];
      }
    }

    float rescale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = maximum[h];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const int j = j0 + 8 * n + 2 * p + w;
          float& score = s[n][2 * h + w];
          if (j > newest[h] || j < oldest[h]) score = minus_infinity();
          largest = fmaxf(largest, score);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
      // Rows that have seen no key yet: weights 0, not NaN.
      const float base = largest > minus_infinity() ? largest : 0.0F;
      rescale[h] = device::exp_fixed(__fsub_rn(maximum[h], base));
      maximum[h] = largest;
      float added = 0.0F;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          float& score = s[n][2 * h + w];
          score = device::exp_fixed(__fsub_rn(score, base));
          added = __fadd_rn(added, score);
        }
      }
      sum[h] = __fmaf_rn(sum[h], rescale[h], added);
    }
    if (__any_sync(kFullWarp, rescale[0] != 1.0F || rescale[1] != 1.0F ? 1 : 0) != 0) {
#pragma unroll
      for (int n = 0; n < kDims / 8; ++n) {
        acc[n][0] = __fmul_rn(acc[n][0], rescale[0]);
        acc[n][1] = __fmul_rn(acc[n][1], rescale[0]);
        acc[n][2] = __fmul_rn(acc[n][2], rescale[1]);
        acc[n][3] = __fmul_rn(acc[n][3], rescale[1]);
      }
    }
    device::async_wait<1>();
    __syncthreads();  // the values have arrived
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      const std::uint32_t a[4] = {device::half_pair(s[n][0], s[n][1]),
                                  device::half_pair(s[n][2], s[n][3]),
                                  device::half_pair(s[n + 1][0], s[n + 1][1]),
                                  device::half_pair(s[n + 1][2], s[n + 1][3])};
#pragma unroll
      for (int d = 0; d < kDims / 8; d += 2) {
        std::uint32_t b0[2];
        std::uint32_t b1[2];
        load_values(v + 8 * n * kStride + part * kDims + 8 * d, kStride, b0, b1);
        device::mma_f16(acc[d], a, b0);
        device::mma_f16(acc[d + 1], a, b1);
      }
    }
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(kFullWarp, sum[h], 1));
    sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(kFullWarp, sum[h], 2));
    const int row = first + warp_rows + g + 8 * h;
    if (row > last) continue;
    float* o = c.o + source(row) + part * kDims + 2 * p;
#pragma unroll
    for (int n = 0; n < kDims / 8; ++n) {
      *reinterpret_cast<float2*>(o + 8 * n) =
          make_float2(device::canonical_nan(__fdiv_rn(acc[n][2 * h], sum[h])),
                      device::canonical_nan(__fdiv_rn(acc[n][2 * h + 1], sum[h])));
    }
  }
}

template <int HD>
void run(const device::AttendCall<std::uint16_t>& c, Stream stream) {
  const int rows = c.tokens * (c.heads / c.kv_heads);
  launch(mma_kernel<HD>,
         dim3(blocks_for(static_cast<std::size_t>(rows), kTileQueries),
              static_cast<unsigned>(c.kv_heads)),
         dim3(MmaTile<HD>::kThreads),
         MmaTile<HD>::kSharedBytes,
         stream,
         c);
}

}  // namespace

void launch_mma_tiles(const AttentionPrefill::Shape& s,
                      const AttentionPrefill::Args& a,
                      Workspace,
                      Stream stream) {
  attention_prefill::with_call(s, a, [&]<class T>(const device::AttendCall<T>& c) {
    if constexpr (sizeof(T) == 2) {
      switch (s.head_dim) {
        case 64:
          return run<64>(c, stream);
        case 128:
          return run<128>(c, stream);
        case 256:
          return run<256>(c, stream);
        default:
          return run<512>(c, stream);
      }
    }
  });
}

}  // namespace assay
