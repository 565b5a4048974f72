// The row functions for any CPU.
#include <cmath>

#include "kernels/base/blocks.h"
#include "kernels/base/lanes_plain.h"
#include "kernels/pointwise/rows.h"

namespace assay {
namespace lanes_plain {
namespace {
using pointwise::Rows;
#define ASSAY_LANES
#include "kernels/pointwise/rows.inc"
#undef ASSAY_LANES
}  // namespace
}  // namespace lanes_plain

const pointwise::Rows pointwise::kRowsPlain = lanes_plain::kRows;

}  // namespace assay
