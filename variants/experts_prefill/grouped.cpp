#include "kernels/experts_prefill/grouped.h"

namespace assay {
namespace {

// Four roundings to half, 2^-11 / sqrt(3) each, that of gate and up twice in u: 7e-4 for products of random sign.
double error_bound(const ExpertsPrefill::Shape&) { return 2e-3; }

Why ineligible(const ExpertsPrefill::Shape& s, const DeviceInfo& d) {
  if (s.numerics == Numerics::kExact)
    return "halves its operands: the exact lane multiplies floats";
  if (d.cc < 80) return "needs compute capability 8.0 (mma.sync m16n8k16)";
  if (s.hidden % 32 != 0 || s.width % 32 != 0) return "hidden size or width is no multiple of 32";
  return s.experts <= experts_prefill::kMaxExperts ? nullptr : "more than 1,024 experts";
}

}  // namespace

void launch_grouped(const ExpertsPrefill::Shape&, const ExpertsPrefill::Args&, Workspace, Stream);

ASSAY_VARIANT(ExpertsPrefill, grouped){
    .summary = "all experts in one grid of tensor-core tiles; codes expanded to half on the way in",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_grouped,
                         .workspace_bytes = experts_prefill::grouped_scratch_bytes,
                         .error_bound = error_bound,
                         .float_activations = true)};

}  // namespace assay
