#include <algorithm>

#include "kernels/base/op_impl.h"
#include "kernels/base/route.h"
#include "kernels/doorbell_publish/op.h"

namespace assay {

std::vector<DoorbellPublish::Case> DoorbellPublish::cases() {
  std::vector<Case> cases;
  for (int tokens = 1; tokens <= 8; ++tokens) {
    cases.push_back({.name = "tokens_" + std::to_string(tokens),
                     .shape = {tokens, 128, 8, 96, 2},
                     .hits = Hits::kOneMiss});
  }
  const Shape one{1, 128, 8, 2816, 2};
  cases.push_back({.name = "26b_all_hit", .shape = one, .hits = Hits::kAll});
  cases.push_back({.name = "26b_one_miss", .shape = one, .hits = Hits::kOneMiss});
  cases.push_back({.name = "26b_all_miss", .shape = one, .hits = Hits::kNone});
  cases.push_back({.name = "26b_eight_tokens", .shape = {8, 128, 8, 2816, 2}});
  cases.push_back({.name = "no_residency", .shape = {2, 64, 4, 100, 2, false}});
  cases.push_back(
      {.name = "ties_hit", .shape = {4, 64, 8, 64, 3}, .hits = Hits::kAll, .ties = true});
  cases.push_back(
      {.name = "ties_miss", .shape = {4, 64, 8, 64, 3}, .hits = Hits::kNone, .ties = true});
  cases.push_back({.name = "all_hit_many", .shape = {7, 61, 5, 33, 2}, .hits = Hits::kAll});
  cases.push_back({.name = "one_slot", .shape = {3, 8, 2, 17, 1}});
  cases.push_back({.name = "many_slots", .shape = {3, 8, 8, 17, 43}});
  cases.push_back({.name = "one_of_one", .shape = {1, 1, 1, 1, 2}, .hits = Hits::kNone});
  cases.push_back({.name = "many_experts", .shape = {2, 700, 40, 64, 2}, .hits = Hits::kOneMiss});
  return cases;
}

void DoorbellPublish::fill(const Case& c, const Filler& f) {
  Rng rng(f.seed());
  const Shape& s = c.shape;
  const auto logits = f.get<float>("logits");
  for (auto& v : logits) v = c.ties ? 0.25F : static_cast<float>(rng.normal());
  const auto scale = f.get<float>("scale");
  for (auto& v : scale) v = static_cast<float>(0.5 + rng.uniform());
  for (auto& v : f.get<float>("x")) v = static_cast<float>(rng.normal());
  if (s.residency) {
    const auto resident = f.get<std::int32_t>("resident");
    const auto k = static_cast<std::size_t>(s.top_k);
    std::vector<std::int32_t> ids(k);
    std::vector<float> weights(k);
    const auto chosen = [&](int token) {
      route_row(logits.data() + static_cast<std::size_t>(token) * scale.size(),
                scale.data(),
                s.experts,
                s.top_k,
                ids.data(),
                weights.data());
    };
    switch (c.hits) {
      case Hits::kAll:
        std::fill(resident.begin(), resident.end(), 1);
        break;
      case Hits::kOneMiss:
        // The last token's last choice.
        std::fill(resident.begin(), resident.end(), 1);
        chosen(s.tokens - 1);
        resident[static_cast<std::size_t>(ids.back())] = 0;
        break;
      case Hits::kNone:
        std::fill(resident.begin(), resident.end(), 0);
        break;
      case Hits::kSome:
        for (auto& r : resident) r = rng.below(2) == 0 ? 0 : 1;
        break;
    }
  }
  f.get<std::int32_t>("published")[0] = kPublished;
  for (auto& v : f.get<std::int32_t>("ring_ids")) v = kUntouchedId;
  for (auto& v : f.get<float>("ring_weights")) v = kUntouched;
  for (auto& v : f.get<float>("ring_x")) v = kUntouched;
}

}  // namespace assay
