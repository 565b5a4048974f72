#include "kernels/expert_policy/decay.h"
#include "kernels/expert_policy/run.h"

namespace assay {
namespace {

// Half-life 32 steps, guard 2 steps: the values that won the sweeps on recorded routing (decay32.md).
struct MakeDecay32 {
  expert_policy::Decay operator()(std::uint32_t objects,
                                  std::uint32_t capacity,
                                  std::uint32_t,
                                  std::uint32_t) const {
    return {objects, capacity, 32.0, 2};
  }
};

}  // namespace

ASSAY_VARIANT(ExpertPolicy, decay32){
    .summary =
        "lowest use count decayed with half-life 32 steps goes, unless used in the last 2 steps",
    .stage = Stage::kTrial,
    .exactness = Exactness::kModelLevel,
    .deterministic = true,
    .host = ASSAY_HOST(expert_policy::run<MakeDecay32>)};

}  // namespace assay
