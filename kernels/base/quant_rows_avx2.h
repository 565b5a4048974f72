// The kernels of quant_rows.h for AVX2 with FMA and F16C: both lanes, every block type. 16-bit multiply-adds.
#pragma once
#include "kernels/base/quant_rows.h"

namespace assay {

extern const RowKernels kRowKernelsAvx2;

}  // namespace assay
