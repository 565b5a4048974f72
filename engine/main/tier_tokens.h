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
// The first `count` tokens of a text of bench/tiers, which begins again as often as it must; all of it for 0.
std::vector<TokenId> first_tokens(const std::string& text,
                                  int count,
                                  bool bos,
                                  const Tokenizer& tokenizer);
TierTokens tier_tokens(const EngineTier& tier, const Tokenizer& tokenizer);

}  // namespace assay
