#include "engine/shadow_cache.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/registry.h"

namespace assay {

ShadowCache::ShadowCache(const ExpertPolicy::Shape& shape, const std::string& variant)
    : shape_(shape), policy_(nullptr) {
  if (const Why why = shape.illegal())
    throw UserError("shadow cache of " + shape.describe() + ": " + why);
  std::string names;
  for (const auto& [name, v] : variants<ExpertPolicy>()) {
    if (variant == name) {
      if (const Why why = why_ineligible(*v, shape, host_device()))
        throw UserError("shadow cache: " + variant + " refuses " + shape.describe() + ": " + why);
      policy_ = v->host.fn;
    }
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  if (policy_ == nullptr)
    throw UserError("shadow cache: no expert_policy '" + variant + "': valid are " + names);
  const auto k = static_cast<std::size_t>(shape.top_k);
  for (auto* v : {&decision_.ids, &decision_.resident, &decision_.slot, &decision_.evicted})
    v->resize(k);
}

void ShadowCache::routed(const RoutedChunk& c) {
  const auto tokens = static_cast<std::size_t>(c.tokens);
  const auto k = static_cast<std::size_t>(c.top_k);
  const std::size_t row = tokens * k;
  if (c.layer == 0) {
    ids_.resize(row * static_cast<std::size_t>(shape_.layers));
    weights_.resize(ids_.size());
  }
  const std::size_t at = row * static_cast<std::size_t>(c.layer);
  std::copy(c.ids, c.ids + row, ids_.begin() + static_cast<std::ptrdiff_t>(at));
  std::copy(c.weights, c.weights + row, weights_.begin() + static_cast<std::ptrdiff_t>(at));
  if (c.layer + 1 < shape_.layers) return;
  for (std::size_t t = 0; t < tokens; ++t, ++step_) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::size_t from = row * static_cast<std::size_t>(layer) + t * k;
      ShadowDecision& d = decision_;
      d.step = step_;
      d.layer = layer;
      std::copy_n(ids_.begin() + static_cast<std::ptrdiff_t>(from), k, d.ids.begin());
      ExpertPolicy::Args args;
      args.state = &state_;
      args.ids = d.ids.data();
      args.weights = weights_.data() + from;
      args.layer = layer;
      args.step = step_;
      args.resident = d.resident.data();
      args.slot = d.slot.data();
      args.evicted = d.evicted.data();
      policy_(shape_, args, {}, {});
      accesses_ += k;
      misses_ += k - static_cast<std::size_t>(std::count(d.resident.begin(), d.resident.end(), 1));
      if (log_) log_(d);
    }
  }
}

}  // namespace assay
