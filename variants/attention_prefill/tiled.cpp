#include "kernels/attention_prefill/tiled.h"

#include "kernels/attention_prefill/op.h"
#include "kernels/base/attend_bound.h"

namespace assay {
namespace {

double error_bound(const AttentionPrefill::Shape& s) {
  const int last = s.past + s.tokens - 1;
  return attend_reordered_bound(s.head_dim, last + 1 - AttentionPrefill::oldest(s, last));
}

Why ineligible(const AttentionPrefill::Shape& s, const DeviceInfo& d) {
  if (s.head_dim % 64 != 0 || s.head_dim > 512)
    return "the head size is no multiple of 64 up to 512";
  return attention_prefill::tiled_shared_bytes(s.head_dim) <=
                 static_cast<std::size_t>(d.shared_bytes_per_block)
             ? nullptr
             : "the tile does not fit the shared memory of a block";
}

}  // namespace

void launch_tiled(const AttentionPrefill::Shape&, const AttentionPrefill::Args&, Workspace, Stream);

ASSAY_VARIANT(AttentionPrefill, tiled){
    .summary = "tiles of 16 query rows by 32 keys in shared memory, running maximum, in float",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = false,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_tiled, .error_bound = error_bound)};

}  // namespace assay
