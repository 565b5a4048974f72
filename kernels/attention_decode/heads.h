// How a host kernel of attention_decode shares its heads among threads; `attend` is one of kernels/base/attend*.h.
#pragma once
#include "kernels/attention_decode/op.h"
#include "kernels/base/attend.h"
#include "kernels/base/host_pool.h"

namespace assay::attention_decode {

// attend(keys, q, head_dim, offset, lo, position, out) for float and half caches.
template <class Attend>
void for_each_head(const AttentionDecode::Shape& s,
                   const AttentionDecode::Args& a,
                   Stream stream,
                   Attend attend) {
  const auto hd = static_cast<std::size_t>(s.head_dim);
  const auto group = static_cast<std::size_t>(s.heads / s.kv_heads);
  const auto run = [&](const auto& keys) {
    parallel_for(
        stream.pool, static_cast<std::size_t>(s.heads), 1, [&](std::size_t begin, std::size_t end) {
          for (std::size_t h = begin; h < end; ++h) {
            attend(keys,
                   a.q + h * hd,
                   s.head_dim,
                   h / group * hd,
                   s.position + 1 - s.keys,
                   s.position,
                   a.o + h * hd);
          }
        });
  };
  const std::size_t stride = static_cast<std::size_t>(s.kv_heads) * hd;
  if (s.kv == KvType::kF32) {
    run(KeySource<float>{a.k.f32, a.v.f32, nullptr, nullptr, s.position + 1, s.slots, stride});
  } else {
    run(KeySource<std::uint16_t>{
        a.k.f16, a.v.f16, nullptr, nullptr, s.position + 1, s.slots, stride});
  }
}

}  // namespace assay::attention_decode
