#include "engine/main/tier_tokens.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace assay {

std::vector<TokenId> first_tokens(const std::string& text,
                                  int count,
                                  bool bos,
                                  const Tokenizer& tokenizer) {
  if (count == 0) return tokenizer.encode(tier_text(text, 0), bos, SpecialMode::kNone);
  // No token of a text is longer than its bytes: twice as many bytes until there are enough.
  for (std::size_t bytes = 4 * static_cast<std::size_t>(count);; bytes *= 2) {
    auto ids = tokenizer.encode(tier_text(text, bytes), bos, SpecialMode::kNone);
    if (ids.size() < static_cast<std::size_t>(count)) continue;
    ids.resize(static_cast<std::size_t>(count));
    return ids;
  }
}

TierTokens tier_tokens(const EngineTier& tier, const Tokenizer& tokenizer) {
  TierTokens out;
  out.write = tier.write;
  const bool rest = tier.follow.empty();
  const bool whole = tier.depth == 0 && tier.read == 0;
  const auto ids =
      first_tokens(tier.text, whole ? 0 : tier.depth + (rest ? tier.read : 0), true, tokenizer);
  const auto cut = ids.begin() + tier.depth;
  out.depth.assign(ids.begin(), cut);
  out.read.assign(cut, ids.end());
  if (!rest) out.read = first_tokens(tier.follow, tier.read, false, tokenizer);
  return out;
}

}  // namespace assay
