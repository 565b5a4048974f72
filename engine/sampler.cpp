#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/base/error.h"

namespace assay {

double log_sum_exp(std::span<const float> logits) {
  double top = logits[0];
  for (const float l : logits) top = std::max(top, static_cast<double>(l));
  double sum = 0.0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - top);
  return top + std::log(sum);
}

TokenId greedy_token(std::span<const float> logits) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float best = kLowest;
  TokenId id = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    // !(x < inf) also catches NaN, which would lose every comparison below and pass unseen.
    if (!(logits[i] < std::numeric_limits<float>::infinity())) {
      throw Error(
          Exit::kCheckFailed,
          "logit " + std::to_string(i) + " is " + (std::isnan(logits[i]) ? "NaN" : "infinite"));
    }
    if (logits[i] > best) {
      best = logits[i];
      id = static_cast<TokenId>(i);
    }
  }
  if (id < 0) throw Error(Exit::kCheckFailed, "no token to choose: every logit is -inf");
  return id;
}

Sampler::Sampler(const SamplerSettings& settings) : settings_(settings), rng_(settings.seed) {
  if (!(settings.temperature >= 0.0 && settings.temperature <= 10.0)) {
    throw UserError("temperature " + std::to_string(settings.temperature) + " is outside 0 to 10");
  }
  if (settings.top_k < 0)
    throw UserError("top-k " + std::to_string(settings.top_k) + " is negative");
  if (!(settings.top_p >= 0.0 && settings.top_p <= 1.0)) {
    throw UserError("top-p " + std::to_string(settings.top_p) + " is outside 0 to 1");
  }
}

TokenId Sampler::sample(std::span<const float> logits) {
  const TokenId best = greedy_token(logits);
  if (settings_.greedy || settings_.temperature == 0.0 || settings_.top_k == 1) return best;

  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -std::numeric_limits<float>::infinity()) {
      candidates_.push_back({logits[i], static_cast<TokenId>(i)});
    }
  }
  // Likelier first, ties by id: a total order, so that the choice does not depend on the sort.
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const std::size_t keep =
      settings_.top_k == 0
          ? candidates_.size()
          : std::min(candidates_.size(), static_cast<std::size_t>(settings_.top_k));
  std::partial_sort(candidates_.begin(),
                    candidates_.begin() + static_cast<std::ptrdiff_t>(keep),
                    candidates_.end(),
                    before);

  const double top = static_cast<double>(candidates_[0].logit);
  weights_.clear();
  double sum = 0.0;
  for (std::size_t i = 0; i < keep; ++i) {
    weights_.push_back(
        std::exp((static_cast<double>(candidates_[i].logit) - top) / settings_.temperature));
    sum += weights_.back();
  }
  // The smallest set whose probability reaches top_p.
  std::size_t kept = 0;
  double mass = 0.0;
  do {
    mass += weights_[kept++];
  } while (kept < keep && mass < settings_.top_p * sum);

  const double target = rng_.uniform() * mass;
  double reached = 0.0;
  for (std::size_t i = 0; i < kept; ++i) {
    reached += weights_[i];
    if (target < reached) return candidates_[i].id;
  }
  return candidates_[kept - 1].id;  // rounding left target at the very end
}

}  // namespace assay
