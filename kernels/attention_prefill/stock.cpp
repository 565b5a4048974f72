// Scalar host stock: kernels/base/attend.h for each token and head, shared among threads.
#include "kernels/attention_prefill/op.h"
#include "kernels/base/attend.h"
#include "kernels/base/host_pool.h"

namespace assay {
namespace {

template <class T>
void attend_rows(const AttentionPrefill::Shape& s,
                 const AttentionPrefill::Args& a,
                 const KeySource<T>& keys,
                 Stream stream) {
  const auto hd = static_cast<std::size_t>(s.head_dim);
  const auto heads = static_cast<std::size_t>(s.heads);
  const auto group = static_cast<std::size_t>(s.heads / s.kv_heads);
  // Late tokens see more keys, so the shares go round robin: lane l takes rows l, l + lanes, ..
  const std::size_t rows = static_cast<std::size_t>(s.tokens) * heads;
  const auto lanes = static_cast<std::size_t>(stream.pool != nullptr ? stream.pool->threads() : 1);
  parallel_for(stream.pool, lanes, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t lane = begin; lane < end; ++lane) {
      for (std::size_t r = lane; r < rows; r += lanes) {
        const int position = s.past + static_cast<int>(r / heads);
        attend_scalar(keys,
                      a.q + r * hd,
                      s.head_dim,
                      r % heads / group * hd,
                      AttentionPrefill::oldest(s, position),
                      position,
                      a.o + r * hd);
      }
    }
  });
}

void run_stock(const AttentionPrefill::Shape& s,
               const AttentionPrefill::Args& a,
               Workspace,
               Stream stream) {
  const std::size_t stride =
      static_cast<std::size_t>(s.kv_heads) * static_cast<std::size_t>(s.head_dim);
  if (s.kv == KvType::kF32) {
    attend_rows(
        s,
        a,
        KeySource<float>{
            a.k_past.f32, a.v_past.f32, a.k_fresh.f32, a.v_fresh.f32, s.past, s.slots, stride},
        stream);
  } else {
    attend_rows(
        s,
        a,
        KeySource<std::uint16_t>{
            a.k_past.f16, a.v_past.f16, a.k_fresh.f16, a.v_fresh.f16, s.past, s.slots, stride},
        stream);
  }
}

}  // namespace

ASSAY_VARIANT(AttentionPrefill, stock){
    .summary = "scalar: a token and head at a time, blocks of 256 keys",
    .stage = Stage::kStock,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .host = ASSAY_HOST(run_stock)};

}  // namespace assay
