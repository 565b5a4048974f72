#include "kernels/attention_decode/op.h"
#include "kernels/base/attend_bound.h"

namespace assay {
namespace {

double error_bound(const AttentionDecode::Shape& s) {
  return attend_reordered_bound(s.head_dim, s.keys);
}

}  // namespace

void launch_coalesced(const AttentionDecode::Shape&,
                      const AttentionDecode::Args&,
                      Workspace,
                      Stream);

ASSAY_VARIANT(AttentionDecode, coalesced){
    .summary = "a warp a key, the lanes split the head; the query is staged in shared memory once",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .cuda = ASSAY_LAUNCH(launch_coalesced, .error_bound = error_bound)};

}  // namespace assay
