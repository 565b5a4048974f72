// The steps of a build without CUDA.
#include "kernels/pointwise/steps.h"

namespace assay::pointwise {

const Steps* device_steps() { return nullptr; }

}  // namespace assay::pointwise
