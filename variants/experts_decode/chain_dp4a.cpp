#include "kernels/experts_decode/scratch.h"

namespace assay {
namespace {

Why ineligible(const ExpertsDecode::Shape& s, const DeviceInfo&) {
  return s.numerics == Numerics::kFast ? nullptr
                                       : "multiplies int8 activations: the exact lane has none";
}

}  // namespace

void launch_chain_dp4a(const ExpertsDecode::Shape&, const ExpertsDecode::Args&, Workspace, Stream);

ASSAY_VARIANT(ExpertsDecode, chain_dp4a){
    .summary =
        "a chain of launches an expert; int8 dot products on the codes, in the order of the CPU",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBitwise,
    .bitwise_to = "experts_host:stock",
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_chain_dp4a, .workspace_bytes = experts_decode::scratch_bytes)};

}  // namespace assay
