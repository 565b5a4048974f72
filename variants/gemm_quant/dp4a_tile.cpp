#include <cmath>

#include "kernels/gemm_quant/op.h"

namespace assay {
namespace {

// One running sum over the blocks where the contract has eight chains: its error grows by about 0.3 eps sqrt(blocks), twice that.
double error_bound(const GemmQuant::Shape& s) {
  return 0x1p-24 * (8.0 + 0.6 * std::sqrt(static_cast<double>(s.cols) / kQ8Block));
}

Why ineligible(const GemmQuant::Shape& s, const DeviceInfo&) {
  if (s.numerics == Numerics::kExact) return "multiplies int8 activations: the exact lane has none";
  return has_codes(s.type) ? nullptr : "the weights have no integer codes";
}

}  // namespace

void launch_dp4a_tile(const GemmQuant::Shape&, const GemmQuant::Args&, Workspace, Stream);

ASSAY_VARIANT(GemmQuant, dp4a_tile){
    .summary = "int8 dot products on CUDA cores, 32 rows by 64 tokens a block",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_dp4a_tile, .error_bound = error_bound)};

}  // namespace assay
