// A tier of bench/tiers.h as token ids of one model.
#pragma once
#include <string>
#include <vector>

#include "bench/tiers.h"
#include "engine/tokenizer.h"

namespace assay {

struct TierTokens {
  std::vector<TokenId> depth;  // in the cache before the clock starts
  std::vector<TokenId> read;   // read inside the clock; may be empty
  int write = 0;               // then written
  int total() const { return static_cast<int>(depth.size() + read.size()) + write; }
};
TierTokens tier_tokens(const EngineTier& tier, const Tokenizer& tokenizer);

}  // namespace assay
