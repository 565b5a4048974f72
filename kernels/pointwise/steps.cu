// The forward's small kernels: rows [tokens][n] in, rows out, with the float operations of pointwise.h in its order.
//
// A block owns one row (one token, or one head of one token), so a row's bits do not depend on its neighbours. The root
// mean square is 16 chains because the contract says so: the row is staged in shared memory by the whole block and summed
// by 16 lanes; that is the latency of n / 16 dependent additions (176 at a width of 2816), which no other order of the
// same bits avoids. Purely elementwise steps take a thread an element. Shared memory: one tile of a row (16 KB, 4 KB for
// heads). Bound: bytes; at one token all are latency.
#include <cmath>

#include "kernels/base/blocks.cuh"
#include "kernels/base/launch.cuh"
#include "kernels/pointwise/steps.h"

namespace assay::pointwise {
namespace {

constexpr int kThreads = 256;
constexpr int kHeadThreads = 128;
// A whole row of a token: one block is all that runs of a decode step's norm, so it brings many loads under way at once.
constexpr int kRowThreads = 1024;
constexpr int kChains = 16;
constexpr int kRowTile =
    4096;  // a multiple of kChains, so that element i belongs to chain i % 16 in every tile

__device__ inline std::size_t at_row(int t, int n) {
  return static_cast<std::size_t>(t) * static_cast<std::size_t>(n);
}

// rms_scale() of R rows, in every thread of the block; a warp a row adds, so that R take no longer than one. `tile` holds R * Tile
// floats. Ends with a barrier, so that the caller may overwrite the rows.
template <int Tile, int Threads, int R>
__device__ void row_scales(
    const float* const (&x)[R], int n, float eps, float* tile, float (&result)[R]) {
  __shared__ float scale[R];
  const int thread = static_cast<int>(threadIdx.x);
  const int row = warp_id();
  float chain = 0.0F;
  for (int first = 0; first < n; first += Tile) {
    const int m = n - first < Tile ? n - first : Tile;
    __syncthreads();  // the last tile, or the last call's, has been read
    // All loads of a thread before its first store: the compiler cannot tell that they do not overlap.
    constexpr int kMost = (Tile + Threads - 1) / Threads;
    float staged[R][kMost];
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const int i = thread + k * Threads;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (i < m) staged[r][k] = x[r][first + i];
      }
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const int i = thread + k * Threads;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (i < m) tile[r * Tile + i] = staged[r][k];
      }
    }
    __syncthreads();
    if (row < R && lane_id() < kChains) {
      const float* mine = tile + row * Tile;
      // Loads of later elements start while the chain waits for its last addition.
#pragma unroll 16
      for (int i = lane_id(); i < m; i += kChains) chain = __fmaf_rn(mine[i], mine[i], chain);
    }
  }
  if (row < R) {
    for (int h = kChains / 2; h >= 1; h /= 2) {
      chain = __fadd_rn(chain, __shfl_down_sync(kFullWarp, chain, static_cast<unsigned>(h)));
    }
    if (lane_id() == 0) {
      const float mean = __fdiv_rn(chain, static_cast<float>(n));
      scale[row] = __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(mean, eps)));
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < R; ++r) result[r] = scale[r];
}
template <int Tile, int Threads>
__device__ float row_scale(const float* x, int n, float eps, float* tile) {
  float result[1];
  row_scales<Tile, Threads, 1>({x}, n, eps, tile, result);
  return result[0];
}

// use(i, load(i)) for the n elements of a row, by a block of kRowThreads; a thread's next loads are on their way together, which
// the compiler would not do past stores that may overlap.
template <class Load, class Use>
__device__ inline void over_row(int n, const Load& load, const Use& use) {
  constexpr int kBatch = 4;
  for (int first = static_cast<int>(threadIdx.x); first < n; first += kBatch * kRowThreads) {
    decltype(load(0)) v[kBatch] = {};
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * kRowThreads;
      if (i < n) v[k] = load(i);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * kRowThreads;
      if (i < n) use(i, v[k]);
    }
  }
}

// Asks for a row of weights, which comes from memory, before what it is multiplied with is summed.
__device__ inline void ask_for(const float* w, int n) {
  const int line = static_cast<int>(threadIdx.x) * 32;
  if (w != nullptr && line < n) device::prefetch(w + line);
}

// Element i of scale_row().
__device__ inline float scaled(float x, float r, const float* w, int i) {
  const float v = __fmul_rn(x, r);
  return w != nullptr ? __fmul_rn(v, w[i]) : v;
}

// Element i of row t into an activation. With codes every warp is here whole: n is a multiple of 32, and so is the
// distance between a thread's elements.
__device__ inline void put(const Activation& a, bool codes, int t, int n, int i, float v) {
  const std::size_t at = at_row(t, n) + static_cast<std::size_t>(i);
  a.x[at] = v;
  if (!codes) return;
  std::uint16_t bits = 0;
  a.codes[at] = device::quantize_q8_lane(v, bits);
  if (lane_id() == 0) a.scales[at / kQ8Block] = bits;
}

template <BlockType T>
__global__ void embed_kernel(const std::byte* data,
                             std::size_t row_bytes,
                             int n,
                             const std::int32_t* ids,
                             float scale,
                             float* x) {
  device::let_later_start();
  const int t = static_cast<int>(blockIdx.x);
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n) return;
  const std::byte* row = data + static_cast<std::size_t>(ids[t]) * row_bytes;
  x[at_row(t, n) + static_cast<std::size_t>(i)] = __fmul_rn(device::element<T>(row, i), scale);
}

__global__ void angles_kernel(
    const std::int32_t* first, const double* frequency, int half, float* cosine, float* sine) {
  device::let_later_start();
  const int t = static_cast<int>(blockIdx.x);
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= half) return;
  // Double: at the end of a context of 2^18 a float angle would have lost its last two digits.
  const double theta = static_cast<double>(*first + t) * frequency[i];
  const std::size_t at = at_row(t, half) + static_cast<std::size_t>(i);
  cosine[at] = static_cast<float>(cos(theta));
  sine[at] = static_cast<float>(sin(theta));
}

__global__ void __launch_bounds__(kRowThreads)
    norm_kernel(const float* x, const float* w, int n, float eps, Activation out, bool codes) {
  device::let_later_start();
  ask_for(w, n);
  __shared__ float tile[kRowTile];
  const int t = static_cast<int>(blockIdx.x);
  const float* row = x + at_row(t, n);
  const float r = row_scale<kRowTile, kRowThreads>(row, n, eps, tile);
  over_row(
      n,
      [&](int i) { return scaled(row[i], r, w, i); },
      [&](int i, float v) { put(out, codes, t, n, i, v); });
}

// grid: (token, head of Q, then of K, then of V).
__global__ void heads_kernel(HeadsStep s) {
  device::let_later_start();
  __shared__ float head[kMaxHeadDim];
  const int t = static_cast<int>(blockIdx.x);
  const int unit = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int hd = s.head_dim;
  const bool is_q = unit < s.heads;
  const bool is_k = !is_q && unit < s.heads + s.kv_heads;
  const int h = is_q ? unit : (is_k ? unit - s.heads : unit - s.heads - s.kv_heads);
  const Columns& from = is_q ? s.q : (is_k ? s.k : s.v);
  const float* w = is_q ? s.q_norm : (is_k ? s.k_norm : nullptr);
  const float* x = from.base + static_cast<std::size_t>(t) * from.stride + at_row(h, hd);
  const float r = row_scale<kMaxHeadDim, kHeadThreads>(x, hd, s.eps, head);
  for (int i = thread; i < hd; i += kHeadThreads) head[i] = scaled(head[i], r, w, i);
  __syncthreads();  // RoPE reads the partner's half
  const int half = hd / 2;
  const int row = s.position != nullptr ? *s.position % s.slots : t;
  const std::size_t to =
      is_q ? at_row(t, s.heads * hd) + at_row(h, hd) : at_row(row, s.kv_heads * hd) + at_row(h, hd);
  const auto store = [&](int i, float v) {
    const std::size_t at = to + static_cast<std::size_t>(i);
    if (is_q) {
      s.q_out[at] = v;
      return;
    }
    const KvRow& out = is_k ? s.k_out : s.v_out;
    if (out.f32 != nullptr) {
      out.f32[at] = v;
    } else {
      out.f16[at] = device::float_to_half_bits(v);
    }
  };
  for (int i = thread; i < half; i += kHeadThreads) {
    float a = head[i];
    float b = head[half + i];
    if (is_q || is_k) {
      const std::size_t angle = at_row(t, half) + static_cast<std::size_t>(i);
      const float c = s.cosine[angle];
      const float sine = s.sine[angle];
      const float turned = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, sine));
      b = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, sine));
      a = turned;
    }
    store(i, a);
    store(half + i, b);
  }
}

__global__ void quantise_kernel(Activation a, int n) {
  device::let_later_start();
  const int t = static_cast<int>(blockIdx.x);
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n) return;
  const std::size_t at = at_row(t, n) + static_cast<std::size_t>(i);
  std::uint16_t bits = 0;
  a.codes[at] = device::quantize_q8_lane(a.x[at], bits);
  if (lane_id() == 0) a.scales[at / kQ8Block] = bits;
}

__global__ void __launch_bounds__(kRowThreads) add_norm_kernel(
    const float* x, const float* branch, const float* w, int n, float eps, float* h) {
  device::let_later_start();
  ask_for(w, n);
  __shared__ float tile[kRowTile];
  const std::size_t at = at_row(static_cast<int>(blockIdx.x), n);
  const float r = row_scale<kRowTile, kRowThreads>(branch + at, n, eps, tile);
  over_row(
      n,
      [&](int i) {
        const std::size_t e = at + static_cast<std::size_t>(i);
        return __fadd_rn(x[e], scaled(branch[e], r, w, i));
      },
      [&](int i, float v) { h[at + static_cast<std::size_t>(i)] = v; });
}

__global__ void __launch_bounds__(kRowThreads)
    ffn_in_kernel(FfnInStep s, bool dense_codes, bool expert_codes) {
  const int n = s.hidden;
  device::let_later_start();
  ask_for(s.dense_norm, n);
  ask_for(s.expert_norm, n);
  ask_for(s.router_scale, n);
  __shared__ float tile[kRowTile];
  const int t = static_cast<int>(blockIdx.x);
  const float* h = s.h + at_row(t, n);
  const float r = row_scale<kRowTile, kRowThreads>(h, n, s.eps, tile);
  struct Three {
    float dense, expert, router;
  };
  over_row(
      n,
      [&](int i) {
        const float x = h[i];
        return Three{scaled(x, r, s.dense_norm, i),
                     scaled(x, r, s.expert_norm, i),
                     scaled(x, r, s.router_scale, i)};
      },
      [&](int i, const Three& v) {
        put(s.dense, dense_codes, t, n, i, v.dense);
        put(s.experts, expert_codes, t, n, i, v.expert);
        s.router[at_row(t, n) + static_cast<std::size_t>(i)] = v.router;
      });
}

__global__ void geglu_kernel(Columns gate, Columns up, int n, Activation out, bool codes) {
  device::let_later_start();
  const int t = static_cast<int>(blockIdx.x);
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n) return;
  const float g =
      gate.base[static_cast<std::size_t>(t) * gate.stride + static_cast<std::size_t>(i)];
  const float u = up.base[static_cast<std::size_t>(t) * up.stride + static_cast<std::size_t>(i)];
  put(out, codes, t, n, i, __fmul_rn(device::gelu_fixed(g), u));
}

__global__ void __launch_bounds__(kRowThreads) ffn_out_kernel(FfnOutStep s) {
  const int n = s.hidden;
  device::let_later_start();
  ask_for(s.dense_norm, n);
  ask_for(s.routed_norm, n);
  ask_for(s.norm, n);
  __shared__ float tile[2 * kRowTile];
  const std::size_t at = at_row(static_cast<int>(blockIdx.x), n);
  float* dense = s.dense + at;
  const float* routed = s.routed + at;
  float r[2];
  row_scales<kRowTile, kRowThreads, 2>({dense, routed}, n, s.eps, tile, r);
  over_row(
      n,
      [&](int i) {
        return __fadd_rn(scaled(dense[i], r[0], s.dense_norm, i),
                         scaled(routed[i], r[1], s.routed_norm, i));
      },
      [&](int i, float v) { dense[i] = v; });
  // row_scale begins with a barrier: the sum is whole before it is read.
  const float both = row_scale<kRowTile, kRowThreads>(dense, n, s.eps, tile);
  over_row(
      n,
      [&](int i) {
        return __fmul_rn(
            __fadd_rn(s.h[at + static_cast<std::size_t>(i)], scaled(dense[i], both, s.norm, i)),
            s.layer_scale);
      },
      [&](int i, float v) { s.x[at + static_cast<std::size_t>(i)] = v; });
}

// A thread a token: ids are few, and this path is taken only when they are chosen from outside.
__global__ void route_weights_kernel(const float* logits,
                                     int experts,
                                     const float* scale,
                                     const std::int32_t* ids,
                                     int tokens,
                                     int top_k,
                                     float* weights) {
  device::let_later_start();
  const int t = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (t >= tokens) return;
  const float* l = logits + at_row(t, experts);
  const std::int32_t* id = ids + at_row(t, top_k);
  float* w = weights + at_row(t, top_k);
  float maximum = l[id[0]];
  for (int i = 1; i < top_k; ++i) maximum = maximum < l[id[i]] ? l[id[i]] : maximum;
  float sum = 0.0F;
  for (int i = 0; i < top_k; ++i) {
    w[i] = device::exp_fixed(__fsub_rn(l[id[i]], maximum));
    sum = __fadd_rn(sum, w[i]);
  }
  for (int i = 0; i < top_k; ++i) w[i] = __fmul_rn(__fdiv_rn(w[i], sum), scale[id[i]]);
}

__global__ void softcap_kernel(float* l, std::size_t n, float cap) {
  device::let_later_start();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) l[i] = __fmul_rn(cap, device::tanh_fixed(__fdiv_rn(l[i], cap)));
}

// Larger value, then lower index, as one number; 0: nothing; all ones: not finite.
constexpr unsigned long long kNotFinite = ~0ULL;
__device__ inline unsigned long long rank(float v, int i) {
  const unsigned bits = __float_as_uint(__fadd_rn(v, 0.0F));  // -0 counts as +0
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U || bits == 0x7F800000U) return kNotFinite;
  if (bits == 0xFF800000U) return 0;
  const unsigned rising = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<unsigned long long>(rising) << 32) | (0xFFFFFFFFU - static_cast<unsigned>(i));
}
__device__ inline unsigned long long larger(unsigned long long a, unsigned long long b) {
  return a > b ? a : b;
}
// Largest over the block, in thread 0.
__device__ unsigned long long block_largest(unsigned long long best) {
  __shared__ unsigned long long of_warp[kThreads / kWarp];
  for (int h = kWarp / 2; h >= 1; h /= 2) best = larger(best, __shfl_xor_sync(kFullWarp, best, h));
  if (lane_id() == 0) of_warp[warp_id()] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kThreads / kWarp; ++w) best = larger(best, of_warp[w]);
  }
  return best;
}

__global__ void argmax_part_kernel(const float* l, int n, std::uint64_t* part) {
  device::let_later_start();
  unsigned long long best = 0;
  const int step = static_cast<int>(gridDim.x) * kThreads;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < n;
       i += step) {
    best = larger(best, rank(l[i], i));
  }
  best = block_largest(best);
  if (threadIdx.x == 0) part[blockIdx.x] = best;
}

__global__ void argmax_last_kernel(const std::uint64_t* part, int parts, std::int32_t* id) {
  device::let_later_start();
  unsigned long long best = static_cast<int>(threadIdx.x) < parts ? part[threadIdx.x] : 0;
  best = block_largest(best);
  if (threadIdx.x != 0) return;
  *id = best == 0 || best == kNotFinite
            ? -1
            : static_cast<std::int32_t>(0xFFFFFFFFU - static_cast<unsigned>(best & 0xFFFFFFFFU));
}

// ---- launches ----

dim3 rows_grid(int tokens) { return dim3(static_cast<unsigned>(tokens)); }
dim3 elements_grid(int tokens, int n) {
  return dim3(static_cast<unsigned>(tokens), blocks_for(static_cast<std::size_t>(n), kThreads));
}

void embed_rows(const QuantView& table,
                const std::int32_t* ids,
                int tokens,
                float scale,
                float* x,
                Stream stream) {
  device::for_format(table.type, [&]<BlockType T>() {
    launch(embed_kernel<T>,
           elements_grid(tokens, table.cols),
           dim3(kThreads),
           0,
           stream,
           table.data,
           table.row_bytes,
           table.cols,
           ids,
           scale,
           x);
  });
}

void angles(const std::int32_t* first,
            int tokens,
            const double* frequency,
            int half,
            float* cosine,
            float* sine,
            Stream stream) {
  launch(angles_kernel,
         elements_grid(tokens, half),
         dim3(kThreads),
         0,
         stream,
         first,
         frequency,
         half,
         cosine,
         sine);
}

void norm(
    const float* x, const float* w, int tokens, int n, float eps, Activation out, Stream stream) {
  launch(norm_kernel,
         rows_grid(tokens),
         dim3(kRowThreads),
         0,
         stream,
         x,
         w,
         n,
         eps,
         out,
         out.quantised(n));
}

void heads(const HeadsStep& s, int tokens, Stream stream) {
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(s.heads + 2 * s.kv_heads));
  launch(heads_kernel, grid, dim3(kHeadThreads), 0, stream, s);
}

void quantise(Activation a, int tokens, int n, Stream stream) {
  if (!a.quantised(n)) return;
  launch(quantise_kernel, elements_grid(tokens, n), dim3(kThreads), 0, stream, a, n);
}

void add_norm(const float* x,
              const float* branch,
              const float* w,
              int tokens,
              int n,
              float eps,
              float* h,
              Stream stream) {
  launch(add_norm_kernel, rows_grid(tokens), dim3(kRowThreads), 0, stream, x, branch, w, n, eps, h);
}

void ffn_in(const FfnInStep& s, int tokens, Stream stream) {
  launch(ffn_in_kernel,
         rows_grid(tokens),
         dim3(kRowThreads),
         0,
         stream,
         s,
         s.dense.quantised(s.hidden),
         s.experts.quantised(s.hidden));
}

void geglu_rows(Columns gate, Columns up, int tokens, int n, Activation out, Stream stream) {
  launch(geglu_kernel,
         elements_grid(tokens, n),
         dim3(kThreads),
         0,
         stream,
         gate,
         up,
         n,
         out,
         out.quantised(n));
}

void ffn_out(const FfnOutStep& s, int tokens, Stream stream) {
  launch(ffn_out_kernel, rows_grid(tokens), dim3(kRowThreads), 0, stream, s);
}

void route_weights_rows(const float* logits,
                        int experts,
                        const float* scale,
                        const std::int32_t* ids,
                        int tokens,
                        int top_k,
                        float* weights,
                        Stream stream) {
  launch(route_weights_kernel,
         dim3(blocks_for(static_cast<std::size_t>(tokens), kThreads)),
         dim3(kThreads),
         0,
         stream,
         logits,
         experts,
         scale,
         ids,
         tokens,
         top_k,
         weights);
}

void softcap_all(float* l, std::size_t n, float cap, Stream stream) {
  launch(softcap_kernel, dim3(blocks_for(n, kThreads)), dim3(kThreads), 0, stream, l, n, cap);
}

void argmax(const float* l, int n, std::uint64_t* scratch, std::int32_t* id, Stream stream) {
  const unsigned wanted = blocks_for(static_cast<std::size_t>(n), 8 * kThreads);
  const unsigned parts = wanted < unsigned{kArgmaxScratch} ? wanted : unsigned{kArgmaxScratch};
  launch(argmax_part_kernel, dim3(parts), dim3(kThreads), 0, stream, l, n, scratch);
  launch(
      argmax_last_kernel, dim3(1), dim3(kThreads), 0, stream, scratch, static_cast<int>(parts), id);
}

}  // namespace

const Steps* device_steps() {
  static const Steps steps = {.embed = embed_rows,
                              .angles = angles,
                              .norm = norm,
                              .heads = heads,
                              .quantise = quantise,
                              .add_norm = add_norm,
                              .ffn_in = ffn_in,
                              .geglu = geglu_rows,
                              .ffn_out = ffn_out,
                              .route_weights = route_weights_rows,
                              .softcap = softcap_all,
                              .argmax = argmax};
  return &steps;
}

}  // namespace assay::pointwise
