// The op's arguments as the shared kernels take them: f(AttendCall<float>) or f(AttendCall<std::uint16_t>).
#pragma once
#include "kernels/attention_decode/op.h"
#include "kernels/base/attend.cuh"

namespace assay::attention_decode {

template <class F>
void with_call(const AttentionDecode::Shape& s, const AttentionDecode::Args& a, F&& f) {
  const auto call = [&]<class T>(const T* k, const T* v) {
    const std::size_t stride =
        static_cast<std::size_t>(s.kv_heads) * static_cast<std::size_t>(s.head_dim);
    f(device::AttendCall<T>{{k, v, nullptr, nullptr, s.position + 1, s.slots, stride},
                            a.q,
                            a.o,
                            1,
                            s.heads,
                            s.kv_heads,
                            s.head_dim,
                            s.position,
                            s.keys,
                            s.live ? a.position : nullptr});
  };
  if (s.kv == KvType::kF32) {
    call(a.k.f32, a.v.f32);
  } else {
    call(a.k.f16, a.v.f16);
  }
}

}  // namespace assay::attention_decode
