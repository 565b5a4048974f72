#include "engine/activations.h"

#include <algorithm>

namespace assay {
namespace {

std::size_t z(int n) { return static_cast<std::size_t>(n); }

}  // namespace

Widths::Widths(const ModelConfig& c) : hidden(c.hidden), experts(c.experts), top_k(c.experts_used) {
  for (const auto& l : c.layer) {
    qkv = std::max(qkv, l.q_width() + 2 * l.kv_width());
    q = std::max(q, l.q_width());
    kv = std::max(kv, l.kv_width());
    gate_up = std::max(gate_up, 2 * l.dense_width);
    dense = std::max(dense, l.dense_width);
    half_head = std::max(half_head, l.head_dim / 2);
  }
}

pointwise::Activation Carver::activation(std::size_t tokens, int width, bool fast) {
  pointwise::Activation made;
  made.x = take<float>(tokens * z(width));
  if (fast) {
    made.codes = take<std::int8_t>(tokens * z(width));
    made.scales = take<std::uint16_t>(tokens * z(width) / kQ8Block + 1);
  }
  return made;
}

// The attention half and the FFN half never live at once, so their arrays share memory.
std::size_t Activations::carve(std::byte* base,
                               const ActivationShape& shape,
                               const Widths& w,
                               Activations* out) {
  Carver c(base);
  const std::size_t t = z(shape.tokens);
  const bool fast = shape.fast;
  Activations b;
  b.position = c.take<std::int32_t>(t + 1);
  b.token_ids = b.position != nullptr ? b.position + 1 : nullptr;
  b.x = c.take<float>(t * z(w.hidden));
  b.h = c.take<float>(t * z(w.hidden));
  b.a = c.activation(t, w.hidden, fast);
  b.branch = c.take<float>(t * z(w.hidden));
  b.cosine = c.take<float>(z(shape.rope_tables) * t * z(w.half_head));
  b.sine = c.take<float>(z(shape.rope_tables) * t * z(w.half_head));
  b.ids = c.take<std::int32_t>(t * z(w.top_k));
  b.weights = c.take<float>(t * z(w.top_k));
  b.forced = c.take<std::int32_t>(t * z(w.top_k));
  const std::size_t shared = c.used();
  std::byte* half = base != nullptr ? base + shared : nullptr;
  Carver first(half);
  b.qkv = first.take<float>(t * z(w.qkv));
  b.q = first.take<float>(t * z(w.q));
  b.k_fresh = first.take<std::byte>(t * z(w.kv) * kv_bytes(shape.kv));
  b.v_fresh = first.take<std::byte>(t * z(w.kv) * kv_bytes(shape.kv));
  b.o = first.activation(t, w.q, fast);
  Carver second(half);
  b.gate_up = second.take<float>(t * z(w.gate_up));
  b.u = second.activation(t, w.dense, fast);
  b.router_in = second.take<float>(t * z(w.hidden));
  b.router_logits = second.take<float>(t * z(w.experts));
  b.m = second.activation(t, w.hidden, fast);
  b.experts_out = second.take<float>(t * z(w.hidden));
  if (out != nullptr) *out = b;
  return shared + std::max(first.used(), second.used());
}

}  // namespace assay
