// The row functions with AVX2.
#include <cmath>

#include "kernels/base/blocks.h"
#include "kernels/base/lanes_avx2.h"
#include "kernels/pointwise/rows.h"

namespace assay {
namespace lanes_avx2 {
namespace {
using pointwise::Rows;
#define ASSAY_LANES ASSAY_TARGET_AVX2
#include "kernels/base/math_lanes.inc"
// Second: it uses gelu_lanes. The comment keeps the formatter from sorting the two.
#include "kernels/pointwise/rows.inc"
#undef ASSAY_LANES
}  // namespace
}  // namespace lanes_avx2

const pointwise::Rows pointwise::kRowsAvx2 = lanes_avx2::kRows;

}  // namespace assay
