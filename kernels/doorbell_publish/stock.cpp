// Host stock: routes and publishes on the calling thread; the number is a release store, so that it works across threads.
#include <algorithm>
#include <atomic>

#include "kernels/base/route.h"
#include "kernels/doorbell_publish/op.h"

namespace assay {
namespace {

void run_stock(const DoorbellPublish::Shape& s, const DoorbellPublish::Args& a, Workspace, Stream) {
  const auto experts = static_cast<std::size_t>(s.experts);
  const auto tokens = static_cast<std::size_t>(s.tokens);
  const auto k = static_cast<std::size_t>(s.top_k);
  const std::size_t values = tokens * static_cast<std::size_t>(s.hidden);
  for (std::size_t t = 0; t < tokens; ++t) {
    route_row(
        a.logits + t * experts, a.scale, s.experts, s.top_k, a.ids + t * k, a.weights + t * k);
  }
  const std::int32_t number = *a.published + 1;
  const std::size_t slot = static_cast<std::size_t>(number) % static_cast<std::size_t>(s.slots);
  const bool miss = std::any_of(a.ids, a.ids + tokens * k, [&](std::int32_t id) {
    return !s.residency || a.resident[id] == 0;
  });
  std::copy_n(a.ids, tokens * k, a.ring_ids + slot * tokens * k);
  std::copy_n(a.weights, tokens * k, a.ring_weights + slot * tokens * k);
  if (miss) std::copy_n(a.x, values, a.ring_x + slot * values);
  *a.published = number;
  std::atomic_ref<std::int32_t>(*a.sequence).store(number, std::memory_order_release);
}

}  // namespace

void launch_stock(const DoorbellPublish::Shape&, const DoorbellPublish::Args&, Workspace, Stream);

ASSAY_VARIANT(DoorbellPublish, stock){
    .summary = "top-k, then one block of 1,024 threads publishes; on the host one thread",
    .stage = Stage::kStock,
    .exactness = Exactness::kSelection,
    .deterministic = true,
    .batch_invariant = false,
    .host = ASSAY_HOST(run_stock),
    .cuda = ASSAY_LAUNCH(launch_stock)};

}  // namespace assay
