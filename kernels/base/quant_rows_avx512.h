// The kernels of quant_rows.h for AVX-512 with VNNI: the fast lane. Weights without codes and the small steps between
// products are those of AVX2.
#pragma once
#include "kernels/base/quant_rows.h"

namespace assay {

extern const RowKernels kRowKernelsAvx512Vnni;

}  // namespace assay
