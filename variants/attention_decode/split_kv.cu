// o[h] = softmax(q[h] . k) v over the visible keys, the keys split over blocks (flash-decoding).
//
// split_kernel: block (s, g, z) owns the s-th of gridDim.x equal pieces of the visible keys of KV head g for up to G of its
// query heads, so that a key and a value are read from memory once for all of them. 8 warps; a warp takes U keys at a time, its lanes split the
// head (E elements each), and the keys' and values' loads are all issued before the first is used: 8 to 64 KB in flight a
// block. The U * G dot products are folded by one transposing reduction (about one shuffle a product instead of five),
// which leaves product n with lane n. Running maximum, sum and accumulators are a warp's own; they meet in shared memory at
// the end. combine_kernel adds the splits. Scratch: heads * splits * (head_dim + 2) floats.
// Shared memory: G + 8 rows of head_dim floats, at most 32 KB. Registers: G * E accumulators, at most 128, so one or two
// blocks an SM; the grid is sized for about 264 blocks. Bound: bytes of the keys and values.
// Preconditions: head size 64, 128, 256 or 512.
#include "kernels/attention_decode/call.cuh"
#include "kernels/attention_decode/splits.h"

namespace assay {
namespace {

using device::minus_infinity;

constexpr int kWarps = attention_decode::kSplitWarps;
constexpr int kThreads = kWarps * kWarp;
constexpr int kCombineWarps = 16;

// A lane's E elements of a row: pieces of W neighbours, so that a warp's load covers whole lines.
template <class T, int E>
struct Slice {
  static constexpr int kMost = 16 / static_cast<int>(sizeof(T));
  static constexpr int W = E < kMost ? E : kMost;
  static constexpr int kWordBytes = W * static_cast<int>(sizeof(T));
  struct alignas(kWordBytes) Piece {
    std::uint32_t word[kWordBytes / 4];
  };
  Piece piece[E / W];

  // Column of the lane's element i.
  __device__ static int column(int lane, int i) { return i / W * (kWarp * W) + lane * W + i % W; }
  __device__ void load(const T* row, int lane) {
#pragma unroll
    for (int p = 0; p < E / W; ++p) {
      piece[p] = *reinterpret_cast<const Piece*>(row + column(lane, p * W));
    }
  }
  __device__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(piece[i / W].word[i % W]);
    } else {
      const std::uint32_t word = piece[i / W].word[i % W / 2];
      return device::half_bits_to_float(static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16));
    }
  }
};

// v[n] summed over the warp for all n at once: afterwards v[0] of lane l is the sum of value l / (32 / N).
template <int N>
__device__ inline void fold(float (&v)[N]) {
  int bit = kWarp / 2;
#pragma unroll
  for (int half = N / 2; half >= 1; half /= 2) {
    const bool upper = (lane_id() & bit) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float keep = upper ? v[i + half] : v[i];
      const float give = upper ? v[i] : v[i + half];
      v[i] = __fadd_rn(keep, __shfl_xor_sync(kFullWarp, give, bit));
    }
    bit /= 2;
  }
  for (; bit >= 1; bit /= 2) v[0] = __fadd_rn(v[0], __shfl_xor_sync(kFullWarp, v[0], bit));
}

template <class T, int E, int G>
__global__ void __launch_bounds__(kThreads) split_kernel(device::AttendCall<T> c, float* partial) {
  constexpr int U = attention_decode::split_keys(sizeof(T), G);
  constexpr int N = U * G;           // products of one step, at most 32
  constexpr int kLanes = kWarp / N;  // lanes that hold the same product after fold
  constexpr int V = E < 4 ? E : 4;   // floats of the query that a lane reads at once
  struct alignas(4 * V) Floats {
    float f[V];
  };
  auto* q = dynamic_shared<Floats>();                              // [G][E / V][32]: conflict-free
  auto* rows = reinterpret_cast<float*>(q + G * (E / V) * kWarp);  // [kWarps][head_dim]
  __shared__ float warp_maximum[kWarps][G];
  __shared__ float warp_sum_of[kWarps][G];
  const int lane = lane_id();
  const int group = c.heads / c.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int first_head = kv_head * group + static_cast<int>(blockIdx.z) * G;
  const int live =
      group - static_cast<int>(blockIdx.z) * G < G ? group - static_cast<int>(blockIdx.z) * G : G;
  for (int n = static_cast<int>(threadIdx.x); n < G * E * kWarp; n += kThreads) {
    const int g = n / (E * kWarp);
    const int i = n / kWarp % E;
    const int l = n % kWarp;
    // Heads beyond the group's last are zeros and never written.
    q[(g * (E / V) + i / V) * kWarp + l].f[i % V] =
        g < live ? c.q[c.row(0, first_head + g) + Slice<T, E>::column(l, i)] : 0.0F;
  }
  __syncthreads();  // the queries are staged

  const std::size_t offset =
      static_cast<std::size_t>(kv_head) * static_cast<std::size_t>(c.head_dim);
  // Cut by what is visible now: a live shape only knows the most. A block may be left without keys.
  const int oldest = c.oldest(0);
  const int stop = c.position(0) + 1;
  constexpr int kStep = kWarps * U;
  const int share = (stop - oldest + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int chunk = (share + kStep - 1) / kStep * kStep;
  const int begin = oldest + static_cast<int>(blockIdx.x) * chunk;
  const int end = begin + chunk < stop ? begin + chunk : stop;

  const int mine = lane / kLanes;  // the product that this lane holds: key mine / G, head mine % G
  float maximum = minus_infinity();
  float sum = 0.0F;  // of this lane's key numbers
  float acc[G][E] = {};
  for (int j = begin + warp_id() * U; j < end; j += kWarps * U) {
    Slice<T, E> k[U];
    Slice<T, E> v[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int at = j + u < end ? j + u : end - 1;  // past the end: loaded, never used
      const auto run = c.keys.run(at, at + 1, offset);
      k[u].load(run.k, lane);
      v[u].load(run.v, lane);
    }
    float product[N] = {};
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int i = 0; i < E; i += V) {
        const Floats x = q[(g * (E / V) + i / V) * kWarp + lane];
#pragma unroll
        for (int u = 0; u < U; ++u) {
#pragma unroll
          for (int w = 0; w < V; ++w) {
            product[u * G + g] = __fmaf_rn(x.f[w], k[u][i + w], product[u * G + g]);
          }
        }
      }
    }
    fold<N>(product);
    const float score = j + mine / G < end ? product[0] : minus_infinity();
    float largest = fmaxf(maximum, score);
#pragma unroll
    for (int bit = kLanes * G; bit < kWarp; bit *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, bit));
    }
    // While every score is -infinity the reference is 0: weights 0, not NaN, as other splits may hold the maximum.
    const float base = largest > minus_infinity() ? largest : 0.0F;
    const float rescale = device::exp_fixed(__fsub_rn(maximum, base));
    const float e = device::exp_fixed(__fsub_rn(score, base));
    sum = __fmaf_rn(sum, rescale, e);
    maximum = largest;
    if (__any_sync(kFullWarp, rescale != 1.0F ? 1 : 0) != 0) {
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const float by = __shfl_sync(kFullWarp, rescale, g * kLanes);
#pragma unroll
        for (int i = 0; i < E; ++i) acc[g][i] = __fmul_rn(acc[g][i], by);
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (j + u >= end) break;
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const float weight = __shfl_sync(kFullWarp, e, (u * G + g) * kLanes);
#pragma unroll
        for (int i = 0; i < E; ++i) acc[g][i] = __fmaf_rn(weight, v[u][i], acc[g][i]);
      }
    }
  }
#pragma unroll
  for (int bit = kLanes * G; bit < kWarp; bit *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, bit));
  }
  if (mine < G && lane % kLanes == 0) {
    warp_maximum[warp_id()][mine] = maximum;
    warp_sum_of[warp_id()][mine] = sum;
  }
  __syncthreads();  // every warp's maximum is known

  // One head at a time the warps' accumulators meet in shared memory.
  const std::size_t width = static_cast<std::size_t>(c.head_dim) + 2;
#pragma unroll
  for (int g = 0; g < G; ++g) {
    float largest = warp_maximum[0][g];
    for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, warp_maximum[w][g]);
    const float base = largest > minus_infinity() ? largest : 0.0F;
    const float by = device::exp_fixed(__fsub_rn(warp_maximum[warp_id()][g], base));
#pragma unroll
    for (int i = 0; i < E; ++i) {
      rows[warp_id() * c.head_dim + Slice<T, E>::column(lane, i)] = __fmul_rn(acc[g][i], by);
    }
    __syncthreads();  // the rows are written
    if (g < live) {
      float* out =
          partial + (static_cast<std::size_t>(first_head + g) * gridDim.x + blockIdx.x) * width;
      for (int d = static_cast<int>(threadIdx.x); d < c.head_dim; d += kThreads) {
        float total = rows[d];
        for (int w = 1; w < kWarps; ++w) total = __fadd_rn(total, rows[w * c.head_dim + d]);
        out[d] = total;
      }
      if (threadIdx.x == 0) {
        float total = 0.0F;
        for (int w = 0; w < kWarps; ++w) {
          total = __fmaf_rn(
              warp_sum_of[w][g], device::exp_fixed(__fsub_rn(warp_maximum[w][g], base)), total);
        }
        out[c.head_dim] = largest;
        out[c.head_dim + 1] = total;
      }
    }
    __syncthreads();  // the rows are read
  }
}

// Columns 32 c .. of o[h] from the splits of head h; block (h, c). A warp takes every kCombineWarps-th split, so that as many
// loads are on their way; one block a head would read its splits one after the other.
__global__ void __launch_bounds__(kCombineWarps* kWarp)
    combine_kernel(const float* partial, int splits, int head_dim, float* o) {
  auto* weight = dynamic_shared<float>();  // [splits]
  __shared__ float warps[kCombineWarps];
  __shared__ float part[kCombineWarps][kWarp];
  const std::size_t width = static_cast<std::size_t>(head_dim) + 2;
  const float* mine = partial + blockIdx.x * static_cast<std::size_t>(splits) * width;
  const int i = static_cast<int>(threadIdx.x);
  float largest = minus_infinity();
  for (int s = i; s < splits; s += kCombineWarps * kWarp) {
    largest = fmaxf(largest, mine[static_cast<std::size_t>(s) * width + head_dim]);
  }
  largest = device::block_max(largest, warps);
  float sum = 0.0F;
  for (int s = i; s < splits; s += kCombineWarps * kWarp) {
    const float* row = mine + static_cast<std::size_t>(s) * width + head_dim;
    weight[s] = device::exp_fixed(__fsub_rn(row[0], largest));
    sum = __fmaf_rn(row[1], weight[s], sum);
  }
  sum = device::block_sum(sum, warps);  // its barriers also publish the weights
  const int d = static_cast<int>(blockIdx.y) * kWarp + lane_id();
  float total = 0.0F;
#pragma unroll 8
  for (int s = warp_id(); s < splits; s += kCombineWarps) {
    total = __fmaf_rn(weight[s], mine[static_cast<std::size_t>(s) * width + d], total);
  }
  part[warp_id()][lane_id()] = total;
  __syncthreads();  // every warp's part is written
  if (warp_id() != 0) return;
  for (int w = 1; w < kCombineWarps; ++w) total = __fadd_rn(total, part[w][lane_id()]);
  o[blockIdx.x * static_cast<std::size_t>(head_dim) + static_cast<std::size_t>(d)] =
      device::canonical_nan(__fdiv_rn(total, sum));
}

template <class T, int E, int G>
void run(const device::AttendCall<T>& c,
         const attention_decode::Splits& splits,
         float* partial,
         Stream stream) {
  launch(split_kernel<T, E, G>,
         dim3(static_cast<unsigned>(splits.count),
              static_cast<unsigned>(c.kv_heads),
              static_cast<unsigned>(splits.head_groups)),
         dim3(kThreads),
         sizeof(float) * static_cast<std::size_t>((G + kWarps) * c.head_dim),
         stream,
         c,
         partial);
  launch(combine_kernel,
         dim3(static_cast<unsigned>(c.heads), static_cast<unsigned>(c.head_dim / kWarp)),
         dim3(kCombineWarps * kWarp),
         sizeof(float) * static_cast<std::size_t>(splits.count),
         stream,
         partial,
         splits.count,
         c.head_dim,
         c.o);
}

}  // namespace

void launch_split_kv(const AttentionDecode::Shape& s,
                     const AttentionDecode::Args& a,
                     Workspace workspace,
                     Stream stream) {
  auto* partial = reinterpret_cast<float*>(workspace.data);
  const auto splits = attention_decode::splits_of(s);
  attention_decode::with_call(s, a, [&]<class T>(const device::AttendCall<T>& c) {
    const auto with_heads = [&]<int E>() {
      if (splits.heads == 2) {
        run<T, E, 2>(c, splits, partial, stream);
      } else {
        run<T, E, 8>(c, splits, partial, stream);
      }
    };
    switch (s.head_dim) {
      case 64:
        return with_heads.template operator()<2>();
      case 128:
        return with_heads.template operator()<4>();
      case 256:
        return with_heads.template operator()<8>();
      default:
        return with_heads.template operator()<16>();
    }
  });
}

}  // namespace assay
