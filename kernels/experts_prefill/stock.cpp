// Scalar host stock: expert by expert, row by row (kernels/base/expert_ffn.cpp, shared with experts_host).
#include "kernels/base/expert_ffn.h"
#include "kernels/experts_prefill/scratch.h"

namespace assay {
namespace {

void run_stock(const ExpertsPrefill::Shape& s,
               const ExpertsPrefill::Args& a,
               Workspace workspace,
               Stream stream) {
  run_expert_ffn_scalar(expert_ffn_of(s, a), workspace, stream.pool);
}

// As in gemm_quant: a library adds in an order of its own, about 0.3 eps sqrt(n) for n products, twice that. The rest as in
// expert_ffn_error_bound.
double cuda_error_bound(const ExpertsPrefill::Shape& s) {
  const auto product = [](int n) { return 4.0 + 0.6 * std::sqrt(static_cast<double>(n)); };
  return 0x1p-24 * (3.0 * product(s.hidden) + product(s.width) + 2.0 + s.top_k);
}

}  // namespace

void launch_stock(const ExpertsPrefill::Shape&, const ExpertsPrefill::Args&, Workspace, Stream);

ASSAY_VARIANT(ExpertsPrefill, stock){
    .summary = "scalar: each row of an expert against every token that chose it",
    .stage = Stage::kStock,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .host = ASSAY_HOST(run_stock),
    .cuda = ASSAY_LAUNCH(launch_stock,
                         .workspace_bytes = experts_prefill::float_scratch_bytes,
                         .error_bound = cuda_error_bound,
                         .float_activations = true,
                         .host_sync = true,
                         .batch_dependent = true)};

}  // namespace assay
