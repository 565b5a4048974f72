// The op's arguments as the shared kernels take them: f(AttendCall<float>) or f(AttendCall<std::uint16_t>).
#pragma once
#include "kernels/attention_prefill/op.h"
#include "kernels/base/attend.cuh"

namespace assay::attention_prefill {

template <class F>
void with_call(const AttentionPrefill::Shape& s, const AttentionPrefill::Args& a, F&& f) {
  const auto call = [&]<class T>(const T* kp, const T* vp, const T* kf, const T* vf) {
    const std::size_t stride =
        static_cast<std::size_t>(s.kv_heads) * static_cast<std::size_t>(s.head_dim);
    f(device::AttendCall<T>{{kp, vp, kf, vf, s.past, s.slots, stride},
                            a.q,
                            a.o,
                            s.tokens,
                            s.heads,
                            s.kv_heads,
                            s.head_dim,
                            s.past,
                            s.window > 0 ? s.window : s.past + s.tokens,
                            nullptr});
  };
  if (s.kv == KvType::kF32) {
    call(a.k_past.f32, a.v_past.f32, a.k_fresh.f32, a.v_fresh.f32);
  } else {
    call(a.k_past.f16, a.v_past.f16, a.k_fresh.f16, a.v_fresh.f16);
  }
}

}  // namespace assay::attention_prefill
