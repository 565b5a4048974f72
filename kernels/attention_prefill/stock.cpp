// Scalar host stock: kernels/base/attend.h for each token and head, shared among threads.
#include "kernels/attention_prefill/rows.h"

namespace assay {
namespace {

void run_stock(const AttentionPrefill::Shape& s,
               const AttentionPrefill::Args& a,
               Workspace,
               Stream stream) {
  attention_prefill::for_each_row(
      s, a, stream, [](const auto& keys, auto... rest) { attend_scalar(keys, rest...); });
}

}  // namespace

void launch_stock(const AttentionPrefill::Shape&, const AttentionPrefill::Args&, Workspace, Stream);

ASSAY_VARIANT(AttentionPrefill, stock){
    .summary = "scalar: a token and head at a time, blocks of 256 keys",
    .stage = Stage::kStock,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .host = ASSAY_HOST(run_stock),
    .cuda = ASSAY_LAUNCH(launch_stock)};

}  // namespace assay
