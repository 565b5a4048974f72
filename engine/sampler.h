// From logits to a token. Seeded and reproducible: the same logits and seed give the same ids on every machine that
// computes exp alike.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/tokenizer.h"
#include "kernels/base/rng.h"

namespace assay {

// log of the sum of exp(logit), in double; NaN with a NaN among them. logits must not be empty.
double log_sum_exp(std::span<const float> logits);

// The largest logit's id, the lowest on ties. Throws Error (exit 1) naming the index of a NaN or +inf, or when no logit
// is above -inf.
TokenId greedy_token(std::span<const float> logits);

struct SamplerSettings {
  bool greedy = false;
  double temperature = 1.0;  // 0..10; 0 is greedy
  int top_k = 64;            // >= 0; 0 keeps all
  double top_p = 0.95;       // 0..1; 1 keeps all; the most likely token always stays
  std::uint64_t seed = 0;
};

// Temperature, then top-k, then top-p, then one draw (one Rng::uniform a token).
class Sampler {
 public:
  // Throws UserError naming the setting that is out of range.
  explicit Sampler(const SamplerSettings& settings);
  // Errors as greedy_token.
  TokenId sample(std::span<const float> logits);

 private:
  struct Candidate {
    float logit;
    TokenId id;
  };
  SamplerSettings settings_;
  Rng rng_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace assay
