#include "kernels/gemv_quant/op.h"

namespace assay {
namespace {

Why ineligible(const GemvQuant::Shape& s, const DeviceInfo&) {
  return s.numerics == Numerics::kExact ? "multiplies int8 activations: the exact lane has none"
                                        : nullptr;
}

}  // namespace

void launch_dp4a(const GemvQuant::Shape&, const GemvQuant::Args&, Workspace, Stream);

ASSAY_VARIANT(GemvQuant, dp4a){
    .summary = "int8 dot products on the codes; rows staged in shared memory by wide copies",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_dp4a)};

}  // namespace assay
