// Scalar host stock: expert by expert, row by row (kernels/base/expert_ffn.cpp, shared with experts_host).
#include "kernels/base/expert_ffn.h"
#include "kernels/experts_prefill/op.h"

namespace assay {
namespace {

void run_stock(const ExpertsPrefill::Shape& s,
               const ExpertsPrefill::Args& a,
               Workspace workspace,
               Stream stream) {
  run_expert_ffn_scalar(expert_ffn_of(s, a), workspace, stream.pool);
}

}  // namespace

ASSAY_VARIANT(ExpertsPrefill, stock){
    .summary = "scalar: each row of an expert against every token that chose it",
    .stage = Stage::kStock,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .host = ASSAY_HOST(run_stock)};

}  // namespace assay
