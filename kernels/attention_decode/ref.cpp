#include "kernels/attention_decode/op.h"
#include "kernels/base/attend.h"

namespace assay {

std::string AttentionDecode::Shape::describe() const {
  return "heads=" + std::to_string(heads) + " kv_heads=" + std::to_string(kv_heads) +
         " head_dim=" + std::to_string(head_dim) + " position=" + std::to_string(position) +
         " keys=" + std::to_string(keys) + " slots=" + std::to_string(slots) +
         " kv=" + to_string(kv) + (live ? " live" : "");
}

std::size_t AttentionDecode::workspace_bytes(const Shape&) { return 0; }

double AttentionDecode::bytes_moved(const Shape& s) {
  return 2.0 * s.keys * s.kv_heads * s.head_dim * static_cast<double>(kv_bytes(s.kv)) +
         8.0 * s.heads * s.head_dim;
}

double AttentionDecode::flops(const Shape& s) { return 4.0 * s.heads * s.keys * s.head_dim; }

double AttentionDecode::error_bound(const Shape& s) {
  return attend_error_bound(s.head_dim, s.keys);
}

std::vector<std::vector<double>> AttentionDecode::reference(const Shape& shape, const Args& a) {
  const Shape s = now(shape, a);
  const auto hd = static_cast<std::size_t>(s.head_dim);
  std::vector<double> o(static_cast<std::size_t>(s.heads) * hd);
  const auto all = [&]<class T>(const T* k, const T* v) {
    const KeySource<T> keys{.k_past = k,
                            .v_past = v,
                            .past = s.position + 1,
                            .slots = s.slots,
                            .stride = static_cast<std::size_t>(s.kv_heads) * hd};
    for (int h = 0; h < s.heads; ++h) {
      const auto at = static_cast<std::size_t>(h) * hd;
      const auto group = static_cast<std::size_t>(h / (s.heads / s.kv_heads));
      attend_reference(keys,
                       a.q + at,
                       s.head_dim,
                       group * hd,
                       s.position + 1 - s.keys,
                       s.position,
                       o.data() + at);
    }
  };
  if (s.kv == KvType::kF32) {
    all(a.k.f32, a.v.f32);
  } else {
    all(a.k.f16, a.v.f16);
  }
  return {o};
}

}  // namespace assay
