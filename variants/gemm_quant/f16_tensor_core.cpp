#include <algorithm>

#include "kernels/gemm_quant/op.h"

namespace assay {
namespace {

constexpr std::size_t kWeightBytes = std::size_t{64} << 20;

std::size_t round(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// A scale a token, the activations in half, as many rows of W in half as fit kWeightBytes (at least one).
std::size_t workspace_bytes_of(const GemmQuant::Shape& s) {
  const auto tokens = static_cast<std::size_t>(s.tokens);
  const std::size_t row = static_cast<std::size_t>(s.cols) * 2;
  return round(tokens * sizeof(float)) + round(tokens * row) +
         std::max(row, std::min(kWeightBytes, row * static_cast<std::size_t>(s.rows)));
}

// Both operands rounded to 11 bits: 2^-11 / sqrt(3) each and independent, 4e-4 together for products of random sign.
double error_bound(const GemmQuant::Shape&) { return 1e-3; }

Why ineligible(const GemmQuant::Shape& s, const DeviceInfo&) {
  return s.numerics == Numerics::kExact ? "halves its operands: the exact lane multiplies floats"
                                        : nullptr;
}

}  // namespace

void launch_f16_tensor_core(const GemmQuant::Shape&, const GemmQuant::Args&, Workspace, Stream);

ASSAY_VARIANT(GemmQuant, f16_tensor_core){
    .summary = "both operands to half, cublasGemmEx on tensor cores, float accumulation",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_f16_tensor_core,
                         .workspace_bytes = workspace_bytes_of,
                         .error_bound = error_bound,
                         .float_activations = true,
                         .batch_dependent = true)};

}  // namespace assay
