#include "kernels/expert_policy/lru.h"
#include "kernels/expert_policy/run.h"

namespace assay {

Why ExpertPolicy::Shape::illegal() const {
  if (layers < 1 || layers > 65535) return "layers must be 1 to 65535";
  if (experts < 1 || experts > 65535) return "experts must be 1 to 65535";
  if (top_k < 1 || top_k > 255 || top_k > experts)
    return "top_k must be 1 to 255 and at most experts";
  if (slots < top_k) return "a cache smaller than one group cannot serve it: slots < top_k";
  if (static_cast<std::int64_t>(slots) > static_cast<std::int64_t>(layers) * experts)
    return "more slots than experts";
  if (per_layer && slots % layers != 0) return "per_layer needs slots divisible by layers";
  if (per_layer && slots / layers < top_k)
    return "a layer's share is smaller than one group: slots / layers < top_k";
  return nullptr;
}

std::string ExpertPolicy::Shape::describe() const {
  return "layers=" + std::to_string(layers) + " experts=" + std::to_string(experts) +
         " top_k=" + std::to_string(top_k) + " slots=" + std::to_string(slots) +
         (per_layer ? " per_layer" : " global");
}

namespace {
struct MakeLru {
  expert_policy::Lru operator()(std::uint32_t objects,
                                std::uint32_t capacity,
                                std::uint32_t,
                                std::uint32_t) const {
    return {objects, capacity};
  }
};
}  // namespace

ASSAY_VARIANT(ExpertPolicy, stock){.summary = "least recently used",
                                   .stage = Stage::kStock,
                                   .exactness = Exactness::kSelection,
                                   .deterministic = true,
                                   .host = ASSAY_HOST(expert_policy::run<MakeLru>)};

}  // namespace assay
