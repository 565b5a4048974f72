#include "kernels/attention_decode/splits.h"
#include "kernels/base/attend_bound.h"

namespace assay {
namespace {

double error_bound(const AttentionDecode::Shape& s) {
  return attend_reordered_bound(s.head_dim, s.keys);
}

Why ineligible(const AttentionDecode::Shape& s, const DeviceInfo&) {
  const bool known =
      s.head_dim == 64 || s.head_dim == 128 || s.head_dim == 256 || s.head_dim == 512;
  return known ? nullptr : "the head size is not 64, 128, 256 or 512";
}

}  // namespace

void launch_split_kv(const AttentionDecode::Shape&,
                     const AttentionDecode::Args&,
                     Workspace,
                     Stream);

ASSAY_VARIANT(AttentionDecode, split_kv){
    .summary = "the keys split over blocks, all query heads of a KV head together; then combined",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_split_kv,
                         .workspace_bytes = attention_decode::split_scratch_bytes,
                         .error_bound = error_bound)};

}  // namespace assay
