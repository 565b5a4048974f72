#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/doorbell_publish/op.h"

namespace assay {

std::string DoorbellPublish::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " experts=" + std::to_string(experts) +
         " top_k=" + std::to_string(top_k) + " hidden=" + std::to_string(hidden) +
         " slots=" + std::to_string(slots) + (residency ? "" : " no residency");
}
std::size_t DoorbellPublish::workspace_bytes(const Shape&) { return 0; }
double DoorbellPublish::bytes_moved(const Shape& s) {
  return 4.0 * s.experts * (s.tokens + 2.0) + 16.0 * s.tokens * s.top_k + 8.0 * s.tokens * s.hidden;
}
double DoorbellPublish::flops(const Shape& s) {
  return static_cast<double>(s.tokens) * (s.experts + 12.0 * s.top_k);
}
// As in router_topk.
double DoorbellPublish::error_bound(const Shape& s) { return 0x1p-24 * (24.0 + s.top_k); }

std::vector<std::vector<double>> DoorbellPublish::reference(const Shape& s, const Args& a) {
  const auto experts = static_cast<std::size_t>(s.experts);
  const auto k = static_cast<std::size_t>(s.top_k);
  const auto tokens = static_cast<std::size_t>(s.tokens);
  std::vector<double> ids;
  std::vector<double> weights;
  bool miss = false;
  for (std::size_t t = 0; t < tokens; ++t) {
    const float* row = a.logits + t * experts;
    std::vector<std::size_t> order(experts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(
        order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return row[i] > row[j]; });
    double sum = 0.0;
    for (std::size_t i = 0; i < k; ++i) {
      sum += std::exp(static_cast<double>(row[order[i]]) - row[order[0]]);
    }
    for (std::size_t i = 0; i < k; ++i) {
      const double e = std::exp(static_cast<double>(row[order[i]]) - row[order[0]]);
      ids.push_back(static_cast<double>(order[i]));
      weights.push_back(e / sum * a.scale[order[i]]);
      miss = miss || !s.residency || a.resident[order[i]] == 0;
    }
  }
  const auto slots = static_cast<std::size_t>(s.slots);
  const std::size_t slot = static_cast<std::size_t>(kPublished + 1) % slots;
  const std::size_t values = tokens * static_cast<std::size_t>(s.hidden);
  std::vector<double> ring_ids(slots * ids.size(), kUntouchedId);
  std::vector<double> ring_weights(slots * ids.size(), kUntouched);
  std::vector<double> ring_x(slots * values, kUntouched);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ring_ids[slot * ids.size() + i] = ids[i];
    ring_weights[slot * ids.size() + i] = weights[i];
  }
  for (std::size_t i = 0; miss && i < values; ++i) ring_x[slot * values + i] = a.x[i];
  const std::vector<double> number(1, kPublished + 1);
  return {ids, weights, number, ring_ids, ring_weights, ring_x, number};
}

}  // namespace assay
