// attend.h with AVX2: same bits, head_dim a multiple of 16.
#pragma once
#include "kernels/base/attend.h"
#include "kernels/base/lanes_avx2.h"

namespace assay::lanes_avx2 {
#define ASSAY_LANES ASSAY_TARGET_AVX2
#include "kernels/base/math_lanes.inc"
// Second: it uses exp_lanes. The comment keeps the formatter from sorting the two.
#include "kernels/base/attend_lanes.inc"
#undef ASSAY_LANES
}  // namespace assay::lanes_avx2
