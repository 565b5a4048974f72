#include "kernels/base/quant_rows_avx512.h"
#include "kernels/experts_host/op.h"

namespace assay {
namespace {

void run_avx512_vnni(const ExpertsHost::Shape& s,
                     const ExpertsHost::Args& a,
                     Workspace workspace,
                     Stream stream) {
  run_expert_ffn(kRowKernelsAvx512Vnni, expert_ffn_of(s, a), workspace, stream.pool);
}

Why ineligible(const ExpertsHost::Shape& s, const DeviceInfo& d) {
  if (s.numerics == Numerics::kExact) return "multiplies int8 activations: the exact lane has none";
  return d.avx512_vnni ? nullptr : "needs a CPU with AVX-512 (F, BW, DQ, VL) and VNNI";
}

}  // namespace

ASSAY_VARIANT(ExpertsHost, avx512_vnni){
    .summary = "16 interleaved rows, a lane is a row; four int8 products a lane in one instruction",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBitwise,
    .deterministic = true,
    .batch_invariant = true,
    .ineligible = ineligible,
    .layout = &kRows16,
    .host = ASSAY_HOST(run_avx512_vnni)};

}  // namespace assay
