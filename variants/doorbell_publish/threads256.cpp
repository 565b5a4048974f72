#include "kernels/doorbell_publish/op.h"

namespace assay {
namespace {

Why ineligible(const DoorbellPublish::Shape& s, const DeviceInfo&) {
  return DoorbellPublish::small(s) ? nullptr : "more than 20,480 activations or 80 ids";
}

}  // namespace

void launch_threads256(const DoorbellPublish::Shape&,
                       const DoorbellPublish::Args&,
                       Workspace,
                       Stream);

ASSAY_VARIANT(DoorbellPublish, threads256){
    .summary = "stock with a publishing block of 256 threads",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBitwise,
    .deterministic = true,
    .ineligible = ineligible,
    .cuda = ASSAY_LAUNCH(launch_threads256)};

}  // namespace assay
