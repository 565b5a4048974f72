// Scalar host stock: expert by expert, row by row (kernels/base/expert_ffn.cpp, shared with experts_host).
#include "kernels/base/expert_ffn.h"
#include "kernels/experts_decode/scratch.h"

namespace assay {
namespace {

void run_stock(const ExpertsDecode::Shape& s,
               const ExpertsDecode::Args& a,
               Workspace workspace,
               Stream stream) {
  run_expert_ffn_scalar(expert_ffn_of(s, a), workspace, stream.pool);
}

}  // namespace

void launch_stock(const ExpertsDecode::Shape&, const ExpertsDecode::Args&, Workspace, Stream);

ASSAY_VARIANT(ExpertsDecode, stock){
    .summary = "scalar: a row at a time; on the device a chain of launches an expert, in float",
    .stage = Stage::kStock,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .host = ASSAY_HOST(run_stock),
    .cuda = ASSAY_LAUNCH(launch_stock,
                         .workspace_bytes = experts_decode::scratch_bytes,
                         .float_activations = true)};

}  // namespace assay
