// How a host kernel of attention_decode shares its heads among threads; `attend` is one of kernels/base/attend*.h.
#pragma once
#include <algorithm>

#include "kernels/attention_decode/op.h"
#include "kernels/base/attend.h"
#include "kernels/base/host_pool.h"

namespace assay::attention_decode {

// attend(keys, q, heads, head_dim, offset, lo, position, out) for float and half caches. macs_worth_a_thread: as in
// kernels/base/quant_rows.h.
template <class Attend>
void for_each_head(const AttentionDecode::Shape& shape,
                   const AttentionDecode::Args& a,
                   Stream stream,
                   double macs_worth_a_thread,
                   Attend attend) {
  const auto s = AttentionDecode::now(shape, a);
  const auto hd = static_cast<std::size_t>(s.head_dim);
  const auto group = static_cast<std::size_t>(s.heads / s.kv_heads);
  const double macs = 2.0 * s.keys * s.head_dim;  // of a head
  // Two heads of a group together cost little more than one.
  const auto grain = static_cast<std::size_t>(
      std::max(static_cast<double>(std::min<std::size_t>(group, 2)), macs_worth_a_thread / macs));
  const auto run = [&](const auto& keys) {
    parallel_for(stream.pool,
                 static_cast<std::size_t>(s.heads),
                 grain,
                 [&](std::size_t begin, std::size_t end) {
                   for (std::size_t h = begin; h < end;) {
                     const std::size_t kv_head = h / group;
                     const std::size_t n = std::min(end, (kv_head + 1) * group) - h;
                     attend(keys,
                            a.q + h * hd,
                            static_cast<int>(n),
                            s.head_dim,
                            kv_head * hd,
                            s.position + 1 - s.keys,
                            s.position,
                            a.o + h * hd);
                     h += n;
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
