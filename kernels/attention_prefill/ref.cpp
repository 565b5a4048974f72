#include <algorithm>

#include "kernels/attention_prefill/op.h"
#include "kernels/base/attend.h"

namespace assay {
namespace {

// Query-key pairs of the whole chunk.
double pairs(const AttentionPrefill::Shape& s) {
  double n = 0.0;
  for (int t = 0; t < s.tokens; ++t) {
    n += s.past + t + 1 - AttentionPrefill::oldest(s, s.past + t);
  }
  return n;
}

}  // namespace

std::string AttentionPrefill::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " heads=" + std::to_string(heads) +
         " kv_heads=" + std::to_string(kv_heads) + " head_dim=" + std::to_string(head_dim) +
         " past=" + std::to_string(past) + " slots=" + std::to_string(slots) +
         " window=" + std::to_string(window) + " kv=" + to_string(kv);
}

std::size_t AttentionPrefill::workspace_bytes(const Shape&) { return 0; }

double AttentionPrefill::bytes_moved(const Shape& s) {
  const int seen = s.past - std::min(s.past, oldest(s, s.past));
  return 2.0 * (seen + s.tokens) * s.kv_heads * s.head_dim * static_cast<double>(kv_bytes(s.kv)) +
         8.0 * s.tokens * s.heads * s.head_dim;
}

double AttentionPrefill::flops(const Shape& s) { return 4.0 * pairs(s) * s.heads * s.head_dim; }

double AttentionPrefill::error_bound(const Shape& s) {
  const int last = s.past + s.tokens - 1;
  return attend_error_bound(s.head_dim, last + 1 - oldest(s, last));
}

std::vector<std::vector<double>> AttentionPrefill::reference(const Shape& s, const Args& a) {
  const auto hd = static_cast<std::size_t>(s.head_dim);
  const auto row = static_cast<std::size_t>(s.heads) * hd;
  std::vector<double> o(static_cast<std::size_t>(s.tokens) * row);
  const auto all = [&]<class T>(const T* kp, const T* vp, const T* kf, const T* vf) {
    const KeySource<T> keys{.k_past = kp,
                            .v_past = vp,
                            .k_fresh = kf,
                            .v_fresh = vf,
                            .past = s.past,
                            .slots = s.slots,
                            .stride = static_cast<std::size_t>(s.kv_heads) * hd};
    for (int t = 0; t < s.tokens; ++t) {
      for (int h = 0; h < s.heads; ++h) {
        const std::size_t at = static_cast<std::size_t>(t) * row + static_cast<std::size_t>(h) * hd;
        const auto group = static_cast<std::size_t>(h / (s.heads / s.kv_heads));
        const int position = s.past + t;
        attend_reference(
            keys, a.q + at, s.head_dim, group * hd, oldest(s, position), position, o.data() + at);
      }
    }
  };
  if (s.kv == KvType::kF32) {
    all(a.k_past.f32, a.v_past.f32, a.k_fresh.f32, a.v_fresh.f32);
  } else {
    all(a.k_past.f16, a.v_past.f16, a.k_fresh.f16, a.v_fresh.f16);
  }
  return {o};
}

}  // namespace assay
