#include "kernels/attention_prefill/op.h"
#include "kernels/base/attend_bound.h"

namespace assay {
namespace {

double error_bound(const AttentionPrefill::Shape& s) {
  const int last = s.past + s.tokens - 1;
  return attend_reordered_bound(s.head_dim, last + 1 - AttentionPrefill::oldest(s, last));
}

}  // namespace

void launch_coalesced(const AttentionPrefill::Shape&,
                      const AttentionPrefill::Args&,
                      Workspace,
                      Stream);

ASSAY_VARIANT(AttentionPrefill, coalesced){
    .summary = "a warp a key, the lanes split the head; the query is staged in shared memory once",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .cuda = ASSAY_LAUNCH(launch_coalesced, .error_bound = error_bound)};

}  // namespace assay
