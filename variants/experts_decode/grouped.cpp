#include "kernels/experts_decode/scratch.h"

namespace assay {

void launch_grouped(const ExpertsDecode::Shape&, const ExpertsDecode::Args&, Workspace, Stream);

ASSAY_VARIANT(ExpertsDecode, grouped){
    .summary =
        "all experts in two launches: gate, up and GeGLU by a warp a row; down sums the ranks",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBitwise,
    .bitwise_to = "stock",
    .deterministic = true,
    .batch_invariant = true,
    .cuda = ASSAY_LAUNCH(launch_grouped,
                         .workspace_bytes = experts_decode::scratch_bytes,
                         .float_activations = true)};

}  // namespace assay
