// The row functions with AVX-512.
#include <cmath>

#include "kernels/base/blocks.h"
#include "kernels/base/lanes_avx512.h"
#include "kernels/pointwise/rows.h"

namespace assay {
namespace lanes_avx512 {
namespace {
using pointwise::Rows;
#define ASSAY_LANES ASSAY_TARGET_AVX512
#include "kernels/base/math_lanes.inc"
// Second: it uses gelu_lanes. The comment keeps the formatter from sorting the two.
#include "kernels/pointwise/rows.inc"
#undef ASSAY_LANES
}  // namespace
}  // namespace lanes_avx512

const pointwise::Rows pointwise::kRowsAvx512 = lanes_avx512::kRows;

}  // namespace assay
