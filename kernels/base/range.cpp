#include "kernels/base/range.h"

#include <nvtx3/nvToolsExt.h>

namespace assay {

Range::Range(const char* name) { nvtxRangePushA(name); }
Range::~Range() { nvtxRangePop(); }

}  // namespace assay
