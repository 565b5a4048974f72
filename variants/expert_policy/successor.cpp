#include "kernels/expert_policy/successor.h"

#include "kernels/expert_policy/run.h"

namespace assay {
namespace {

struct MakeSuccessor {
  expert_policy::Successor operator()(std::uint32_t,
                                      std::uint32_t capacity,
                                      std::uint32_t layers,
                                      std::uint32_t experts) const {
    return {capacity, layers, experts, expert_policy::kSuccessorRules};
  }
};

}  // namespace

ASSAY_VARIANT(ExpertPolicy, successor){
    .summary = "lowest expected use goes, learned on line from who follows whom in the layer",
    .stage = Stage::kTrial,
    .exactness = Exactness::kModelLevel,
    .deterministic = true,
    .ineligible = [](const ExpertPolicy::Shape& s, const DeviceInfo&) -> Why {
      if (s.experts > static_cast<int>(expert_policy::Successor::kMaxExperts))
        return "more than 1024 experts a layer: it keeps a square of them";
      return nullptr;
    },
    .host = ASSAY_HOST(expert_policy::run<MakeSuccessor>)};

}  // namespace assay
