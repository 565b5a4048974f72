// What happens between the ops, a chunk of tokens at a time, as one table of functions for each memory space: on the host
// rows are spread over the stream's pool, on a card each step is one launch, captured or not. Both do the float operations
// of pointwise.h in its order and give the same bits. Pointers are of the table's memory space; `tokens` >= 1.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/pointwise/pointwise.h"

namespace assay::pointwise {

// [tokens][width] in float and, unless codes is null or width is no multiple of 32, as quantize_q8 makes it of that.
struct Activation {
  float* x = nullptr;
  std::int8_t* codes = nullptr;
  std::uint16_t* scales = nullptr;
  Q8View q8() const { return {codes, scales}; }
  bool quantised(int width) const { return codes != nullptr && width % kQ8Block == 0; }
};

// Some columns of a wider matrix: row t begins at base + t * stride.
struct Columns {
  const float* base = nullptr;
  std::size_t stride = 0;
};

// From raw projections to what attention reads: per head a norm (V: without a weight), then RoPE on Q and K.
struct HeadsStep {
  Columns q;
  Columns k;
  Columns v;  // may be k: read before its norm and rotation
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* cosine = nullptr;  // [tokens][head_dim / 2]
  const float* sine = nullptr;
  float* q_out = nullptr;  // [tokens][heads * head_dim]
  KvRow k_out;  // [tokens][kv_heads * head_dim], or the cache's [slots] when position is given
  KvRow v_out;
  const std::int32_t* position = nullptr;  // of the one token: its row is *position % slots
  int slots = 1;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // even, at most kMaxHeadDim
  float eps = 0.0F;
};
inline constexpr int kMaxHeadDim = 1024;

// One root mean square of h serves three inputs.
struct FfnInStep {
  const float* h = nullptr;  // [tokens][hidden]
  const float* dense_norm = nullptr;
  const float* router_scale = nullptr;
  const float* expert_norm = nullptr;
  Activation dense;
  float* router = nullptr;
  Activation experts;
  int hidden = 0;
  float eps = 0.0F;
};

// x = (h + norm(norm(dense) + norm(routed))) * layer_scale; dense and routed are overwritten.
struct FfnOutStep {
  const float* h = nullptr;
  float* dense = nullptr;
  float* routed = nullptr;
  const float* dense_norm = nullptr;
  const float* routed_norm = nullptr;
  const float* norm = nullptr;
  float layer_scale = 1.0F;
  float* x = nullptr;
  int hidden = 0;
  float eps = 0.0F;
};

struct Steps {
  // x[t] = embed(table, ids[t], scale); a card reads the file's layout only.
  void (*embed)(
      const QuantView& table, const std::int32_t* ids, int tokens, float scale, float* x, Stream);
  // cosine, sine [tokens][half] of the positions *first, *first + 1, .. A card's double functions may differ from the
  // host's in the last place: one float in about 10^8 rounds the other way.
  void (*angles)(const std::int32_t* first,
                 int tokens,
                 const double* frequency,
                 int half,
                 float* cosine,
                 float* sine,
                 Stream);
  // out = rms_norm(x, w)
  void (*norm)(
      const float* x, const float* w, int tokens, int n, float eps, Activation out, Stream);
  void (*heads)(const HeadsStep&, int tokens, Stream);
  void (*quantise)(Activation, int tokens, int n, Stream);
  // h = x + rms_norm(branch, w)
  void (*add_norm)(const float* x,
                   const float* branch,
                   const float* w,
                   int tokens,
                   int n,
                   float eps,
                   float* h,
                   Stream);
  void (*ffn_in)(const FfnInStep&, int tokens, Stream);
  void (*geglu)(Columns gate, Columns up, int tokens, int n, Activation out, Stream);
  void (*ffn_out)(const FfnOutStep&, int tokens, Stream);
  // pointwise::route_weights of every row
  void (*route_weights)(const float* logits,
                        int experts,
                        const float* scale,
                        const std::int32_t* ids,
                        int tokens,
                        int top_k,
                        float* weights,
                        Stream);
  void (*softcap)(float* l, std::size_t n, float cap, Stream);
  // *id = the largest of n, the lowest index on ties; -1 when one is NaN or +infinity, or all are -infinity. `scratch`:
  // kArgmaxScratch numbers.
  void (*argmax)(const float* l, int n, std::uint64_t* scratch, std::int32_t* id, Stream);
};
inline constexpr int kArgmaxScratch = 128;

extern const Steps kHostSteps;
// Null in a build without CUDA.
const Steps* device_steps();

}  // namespace assay::pointwise
