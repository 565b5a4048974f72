// Top-k of one row of router logits on the host, to the bit what kernels/router_topk/op.h promises. In base because
// doorbell_publish routes too.
#pragma once
#include <cstdint>

namespace assay {

void route_row(const float* logits,
               const float* scale,
               int experts,
               int top_k,
               std::int32_t* ids,
               float* weights);

}  // namespace assay
