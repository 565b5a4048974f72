#include "kernels/router_topk/op.h"

namespace assay {

void launch_device(const RouterTopk::Shape&, const RouterTopk::Args&, Workspace, Stream);

ASSAY_VARIANT(RouterTopk, device){.summary =
                                      "a warp a row on the device: the largest key below the last "
                                      "one, once a rank; nothing waits for the host",
                                  .stage = Stage::kTrial,
                                  .exactness = Exactness::kBitwise,
                                  .deterministic = true,
                                  .batch_invariant = true,
                                  .cuda = ASSAY_LAUNCH(launch_device)};

}  // namespace assay
