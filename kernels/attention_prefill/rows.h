// How a host kernel of attention_prefill shares its rows among threads; `attend` is one of kernels/base/attend*.h.
#pragma once
#include "kernels/attention_prefill/op.h"
#include "kernels/base/attend.h"
#include "kernels/base/host_pool.h"

namespace assay::attention_prefill {

// attend(keys, q, heads, head_dim, offset, lo, position, out) for float and half caches.
template <class Attend>
void for_each_row(const AttentionPrefill::Shape& s,
                  const AttentionPrefill::Args& a,
                  Stream stream,
                  Attend attend) {
  const auto hd = static_cast<std::size_t>(s.head_dim);
  const auto heads = static_cast<std::size_t>(s.heads);
  const auto group = static_cast<std::size_t>(s.heads / s.kv_heads);
  const auto tokens = static_cast<std::size_t>(s.tokens);
  const auto lanes = static_cast<std::size_t>(
      stream.pool != nullptr ? stream.pool->threads() * HostPool::kPieces : 1);
  const auto run = [&](const auto& keys) {
    // Late tokens see more keys, so tokens go round robin: lane l takes tokens l, l + lanes, ..
    parallel_for(stream.pool, lanes, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t lane = begin; lane < end; ++lane) {
        for (std::size_t t = lane; t < tokens; t += lanes) {
          const int position = s.past + static_cast<int>(t);
          for (std::size_t h = 0; h < heads; h += group) {
            const std::size_t at = (t * heads + h) * hd;
            attend(keys,
                   a.q + at,
                   static_cast<int>(group),
                   s.head_dim,
                   h / group * hd,
                   AttentionPrefill::oldest(s, position),
                   position,
                   a.o + at);
          }
        }
      }
    });
  };
  const std::size_t stride = static_cast<std::size_t>(s.kv_heads) * hd;
  if (s.kv == KvType::kF32) {
    run(KeySource<float>{
        a.k_past.f32, a.v_past.f32, a.k_fresh.f32, a.v_fresh.f32, s.past, s.slots, stride});
  } else {
    run(KeySource<std::uint16_t>{
        a.k_past.f16, a.v_past.f16, a.k_fresh.f16, a.v_fresh.f16, s.past, s.slots, stride});
  }
}

}  // namespace assay::attention_prefill
