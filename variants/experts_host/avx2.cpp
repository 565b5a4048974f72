#include "kernels/base/quant_rows_avx2.h"
#include "kernels/experts_host/op.h"

namespace assay {
namespace {

void run_avx2(const ExpertsHost::Shape& s,
              const ExpertsHost::Args& a,
              Workspace workspace,
              Stream stream) {
  run_expert_ffn(kRowKernelsAvx2, expert_ffn_of(s, a), workspace, stream.pool);
}

Why ineligible(const ExpertsHost::Shape&, const DeviceInfo& d) {
  return d.avx2 ? nullptr : "needs a CPU with AVX2, FMA and F16C";
}

}  // namespace

ASSAY_VARIANT(ExpertsHost, avx2){
    .summary =
        "16 interleaved rows, a lane is a row; 16-bit multiply-adds or fma on expanded values",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBitwise,
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .layout = &kRows16,
    .host = ASSAY_HOST(run_avx2)};

}  // namespace assay
