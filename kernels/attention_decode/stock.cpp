// Scalar host stock: kernels/base/attend.h for each head, heads shared among threads.
#include "kernels/attention_decode/op.h"
#include "kernels/base/attend.h"
#include "kernels/base/host_pool.h"

namespace assay {
namespace {

template <class T>
void attend_heads(const AttentionDecode::Shape& s,
                  const AttentionDecode::Args& a,
                  const T* k,
                  const T* v,
                  Stream stream) {
  const auto hd = static_cast<std::size_t>(s.head_dim);
  const auto group = static_cast<std::size_t>(s.heads / s.kv_heads);
  const KeySource<T> keys{.k_past = k,
                          .v_past = v,
                          .past = s.position + 1,
                          .slots = s.slots,
                          .stride = static_cast<std::size_t>(s.kv_heads) * hd};
  parallel_for(
      stream.pool, static_cast<std::size_t>(s.heads), 1, [&](std::size_t begin, std::size_t end) {
        for (std::size_t h = begin; h < end; ++h) {
          attend_scalar(keys,
                        a.q + h * hd,
                        s.head_dim,
                        h / group * hd,
                        s.position + 1 - s.keys,
                        s.position,
                        a.o + h * hd);
        }
      });
}

void run_stock(const AttentionDecode::Shape& s,
               const AttentionDecode::Args& a,
               Workspace,
               Stream stream) {
  if (s.kv == KvType::kF32) {
    attend_heads(s, a, a.k.f32, a.v.f32, stream);
  } else {
    attend_heads(s, a, a.k.f16, a.v.f16, stream);
  }
}

}  // namespace

ASSAY_VARIANT(AttentionDecode, stock){.summary = "scalar: a head at a time, blocks of 256 keys",
                                      .stage = Stage::kStock,
                                      .exactness = Exactness::kBounded,
                                      .deterministic = true,
                                      .batch_invariant = true,
                                      .host = ASSAY_HOST(run_stock)};

}  // namespace assay
