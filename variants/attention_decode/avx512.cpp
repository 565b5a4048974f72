#include "kernels/attention_decode/heads.h"
#include "kernels/base/attend_avx512.h"

namespace assay {
namespace {

void run_avx512(const AttentionDecode::Shape& s,
                const AttentionDecode::Args& a,
                Workspace,
                Stream stream) {
  attention_decode::for_each_head(s, a, stream, 131072.0, [](const auto& keys, auto... rest) {
    lanes_avx512::attend(keys, rest...);
  });
}

Why ineligible(const AttentionDecode::Shape& s, const DeviceInfo& d) {
  if (!d.avx512_vnni) return "needs a CPU with AVX-512 (F, BW, DQ, VL)";
  return s.head_dim % 16 == 0 ? nullptr : "the head size is no multiple of 16";
}

}  // namespace

ASSAY_VARIANT(AttentionDecode, avx512){.summary =
                                           "16 keys scored at once, a lane is a chain; then a lane "
                                           "is a head dimension (one AVX-512 register)",
                                       .stage = Stage::kTrial,
                                       .exactness = Exactness::kBitwise,
                                       .deterministic = true,
                                       .batch_invariant = true,
                                       .ineligible = ineligible,
                                       .host = ASSAY_HOST(run_avx512)};

}  // namespace assay
