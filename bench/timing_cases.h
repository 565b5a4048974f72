// Shapes of a real model for timing on a card, beside the cases that parity judges: those are sized for many checks, and on a
// wide card they would measure launches.
#pragma once
#include "kernels/base/op_info.h"

namespace assay {

// The op with its timing cases appended (names begin with kTimingPrefix); the op itself where it has none. The CPU executor
// gets the op itself: it would take minutes a call.
const OpInfo& with_timing_cases(const OpInfo& op);
inline constexpr const char* kTimingPrefix = "full_";
// gemv_quant with the output projection of a real vocabulary, full_head_fast: hundreds of megabytes.
const OpInfo& with_head();

// Whether the op's calls read what lies in memory, and not what the call before left in the cache: weights and the KV cache of
// a layer come round once a token.
bool reads_memory(const OpInfo& op);

}  // namespace assay
