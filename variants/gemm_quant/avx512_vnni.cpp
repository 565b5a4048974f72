#include "kernels/base/quant_rows_avx512.h"
#include "kernels/gemm_quant/op.h"

namespace assay {
namespace {

void run_avx512_vnni(const GemmQuant::Shape& s,
                     const GemmQuant::Args& a,
                     Workspace workspace,
                     Stream stream) {
  multiply_rows(
      kRowKernelsAvx512Vnni, a.w, s.reads_q8(), a.x, a.xq, s.tokens, a.y, workspace, stream.pool);
}

Why ineligible(const GemmQuant::Shape& s, const DeviceInfo& d) {
  if (s.numerics == Numerics::kExact) return "multiplies int8 activations: the exact lane has none";
  return d.avx512_vnni ? nullptr : "needs a CPU with AVX-512 (F, BW, DQ, VL) and VNNI";
}

}  // namespace

ASSAY_VARIANT(GemmQuant, avx512_vnni){
    .summary = "16 interleaved rows, a lane is a row; four int8 products a lane in one instruction",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBitwise,
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .layout = &kRows16,
    .host = ASSAY_HOST(run_avx512_vnni)};

}  // namespace assay
