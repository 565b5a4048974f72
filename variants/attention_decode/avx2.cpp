#include "kernels/attention_decode/heads.h"
#include "kernels/base/attend_avx2.h"

namespace assay {
namespace {

void run_avx2(const AttentionDecode::Shape& s,
              const AttentionDecode::Args& a,
              Workspace,
              Stream stream) {
  attention_decode::for_each_head(s, a, stream, 65536.0, [](const auto& keys, auto... rest) {
    lanes_avx2::attend(keys, rest...);
  });
}

Why ineligible(const AttentionDecode::Shape& s, const DeviceInfo& d) {
  if (!d.avx2) return "needs a CPU with AVX2, FMA and F16C";
  return s.head_dim % 16 == 0 ? nullptr : "the head size is no multiple of 16";
}

}  // namespace

ASSAY_VARIANT(AttentionDecode, avx2){.summary =
                                         "16 keys scored at once, a lane is a chain; then a lane "
                                         "is a head dimension (two AVX registers)",
                                     .stage = Stage::kTrial,
                                     .exactness = Exactness::kBitwise,
                                     .deterministic = true,
                                     .batch_invariant = true,
                                     .ineligible = ineligible,
                                     .host = ASSAY_HOST(run_avx2)};

}  // namespace assay
