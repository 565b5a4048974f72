#include "kernels/base/quant_rows_avx2.h"
#include "kernels/gemm_quant/op.h"

namespace assay {
namespace {

void run_avx2(const GemmQuant::Shape& s,
              const GemmQuant::Args& a,
              Workspace workspace,
              Stream stream) {
  multiply_rows(
      kRowKernelsAvx2, a.w, s.reads_q8(), a.x, a.xq, s.tokens, a.y, workspace, stream.pool);
}

Why ineligible(const GemmQuant::Shape&, const DeviceInfo& d) {
  return d.avx2 ? nullptr : "needs a CPU with AVX2, FMA and F16C";
}

}  // namespace

ASSAY_VARIANT(GemmQuant, avx2){
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
