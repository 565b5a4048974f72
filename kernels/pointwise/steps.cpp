#include "kernels/pointwise/steps.h"

#include <algorithm>
#include <limits>

#include "kernels/base/host_pool.h"

namespace assay::pointwise {
namespace {

std::size_t z(int n) { return static_cast<std::size_t>(n); }

template <class F>
void each_token(int tokens, Stream stream, F&& row) {
  parallel_for(stream.pool, z(tokens), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) row(t);
  });
}

void quantise_row(const Activation& a, std::size_t t, int n) {
  if (!a.quantised(n)) return;
  const std::size_t at = t * z(n);
  quantize_q8(a.x + at, z(n), a.codes + at, a.scales + at / kQ8Block);
}

void embed_rows(const QuantView& table,
                const std::int32_t* ids,
                int tokens,
                float scale,
                float* x,
                Stream stream) {
  each_token(
      tokens, stream, [&](std::size_t t) { embed(table, ids[t], scale, x + t * z(table.cols)); });
}

void angles(const std::int32_t* first,
            int tokens,
            const double* frequency,
            int half,
            float* cosine,
            float* sine,
            Stream stream) {
  each_token(tokens, stream, [&](std::size_t t) {
    const std::size_t at = t * z(half);
    rope_angles(*first + static_cast<int>(t), frequency, half, cosine + at, sine + at);
  });
}

void norm(
    const float* x, const float* w, int tokens, int n, float eps, Activation out, Stream stream) {
  each_token(tokens, stream, [&](std::size_t t) {
    rms_norm(x + t * z(n), w, n, eps, out.x + t * z(n));
    quantise_row(out, t, n);
  });
}

KvRow advance(KvRow row, std::size_t n) {
  return row.f32 != nullptr ? KvRow{.f32 = row.f32 + n} : KvRow{.f16 = row.f16 + n};
}

void heads(const HeadsStep& s, int tokens, Stream stream) {
  const int hd = s.head_dim;
  const std::size_t half = z(hd / 2);
  const std::size_t kv_width = z(s.kv_heads) * z(hd);
  each_token(tokens, stream, [&](std::size_t t) {
    const float* c = s.cosine + t * half;
    const float* sine = s.sine + t * half;
    for (std::size_t h = 0; h < z(s.heads); ++h) {
      float* to = s.q_out + (t * z(s.heads) + h) * z(hd);
      rms_norm(s.q.base + t * s.q.stride + h * z(hd), s.q_norm, hd, s.eps, to);
      rope(to, hd, c, sine);
    }
    const std::size_t row = s.position != nullptr ? z(*s.position % s.slots) : t;
    alignas(64) float head[kMaxHeadDim];
    for (std::size_t h = 0; h < z(s.kv_heads); ++h) {
      const std::size_t at = h * z(hd);
      rms_norm(s.v.base + t * s.v.stride + at, nullptr, hd, s.eps, head);
      store_kv(head, hd, advance(s.v_out, row * kv_width + at));
      rms_norm(s.k.base + t * s.k.stride + at, s.k_norm, hd, s.eps, head);
      rope(head, hd, c, sine);
      store_kv(head, hd, advance(s.k_out, row * kv_width + at));
    }
  });
}

void quantise(Activation a, int tokens, int n, Stream stream) {
  if (!a.quantised(n)) return;
  each_token(tokens, stream, [&](std::size_t t) { quantise_row(a, t, n); });
}

void add_norm(const float* x,
              const float* branch,
              const float* w,
              int tokens,
              int n,
              float eps,
              float* h,
              Stream stream) {
  each_token(tokens, stream, [&](std::size_t t) {
    const std::size_t at = t * z(n);
    rms_norm(branch + at, w, n, eps, h + at);
    add(x + at, h + at, n, h + at);
  });
}

void ffn_in(const FfnInStep& s, int tokens, Stream stream) {
  const int n = s.hidden;
  each_token(tokens, stream, [&](std::size_t t) {
    const std::size_t at = t * z(n);
    const float* h = s.h + at;
    const float r = rms_scale(h, n, s.eps);
    scale_row(h, r, s.dense_norm, n, s.dense.x + at);
    scale_row(h, r, s.router_scale, n, s.router + at);
    scale_row(h, r, s.expert_norm, n, s.experts.x + at);
    quantise_row(s.dense, t, n);
    quantise_row(s.experts, t, n);
  });
}

void geglu_rows(Columns gate, Columns up, int tokens, int n, Activation out, Stream stream) {
  each_token(tokens, stream, [&](std::size_t t) {
    geglu(gate.base + t * gate.stride, up.base + t * up.stride, n, out.x + t * z(n));
    quantise_row(out, t, n);
  });
}

void ffn_out(const FfnOutStep& s, int tokens, Stream stream) {
  const int n = s.hidden;
  each_token(tokens, stream, [&](std::size_t t) {
    const std::size_t at = t * z(n);
    float* dense = s.dense + at;
    float* routed = s.routed + at;
    rms_norm(dense, s.dense_norm, n, s.eps, dense);
    rms_norm(routed, s.routed_norm, n, s.eps, routed);
    add(dense, routed, n, dense);
    rms_norm(dense, s.norm, n, s.eps, dense);
    add_scaled(s.h + at, dense, s.layer_scale, n, s.x + at);
  });
}

void route_weights_rows(const float* logits,
                        int experts,
                        const float* scale,
                        const std::int32_t* ids,
                        int tokens,
                        int top_k,
                        float* weights,
                        Stream stream) {
  each_token(tokens, stream, [&](std::size_t t) {
    route_weights(
        logits + t * z(experts), scale, ids + t * z(top_k), top_k, weights + t * z(top_k));
  });
}

void softcap_all(float* l, std::size_t n, float cap, Stream stream) {
  constexpr int kStep = 1024;
  parallel_for(stream.pool, n, kStep, [&](std::size_t begin, std::size_t end) {
    softcap(l + begin, static_cast<int>(end - begin), cap);
  });
}

void argmax(const float* l, int n, std::uint64_t*, std::int32_t* id, Stream) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float best = -kInfinity;
  *id = -1;
  for (int i = 0; i < n; ++i) {
    if (!(l[i] < kInfinity)) {
      *id = -1;
      return;
    }
    if (l[i] > best) {
      best = l[i];
      *id = i;
    }
  }
}

}  // namespace

const Steps kHostSteps = {.embed = embed_rows,
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

}  // namespace assay::pointwise
