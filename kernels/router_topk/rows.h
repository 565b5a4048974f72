// The host's top-k, which the CUDA stock calls too: its source shape routes on the host.
#pragma once
#include "kernels/router_topk/op.h"

namespace assay::router_topk {

// a: host memory. pool may be null.
void route_rows(const RouterTopk::Shape& s, const RouterTopk::Args& a, HostPool* pool);

}  // namespace assay::router_topk
