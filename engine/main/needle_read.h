// A needle check of bench/needles.h as one model meets it.
#pragma once
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "bench/needles.h"
#include "engine/forward.h"
#include "engine/tokenizer.h"

namespace assay {

struct NeedleTokens {
  std::vector<TokenId> text;     // read at once
  std::vector<TokenId> without;  // as long, every needle with another's answer
  std::vector<std::vector<TokenId>> asks;
  std::vector<std::vector<TokenId>> answers;
  int total() const;  // with all questions and answers behind the text
};
// UserError when the needles alone are longer than the check.
NeedleTokens needle_tokens(const NeedleCheck& check, const Tokenizer& tokenizer);

// Reads the text, then puts one question after the other as follow-up turns on the same cache. Per needle: the log-probability of
// each token of the answer, given those before it; whether all of them were the most likely ones; by how much the first one led
// (logits); and the log-probabilities behind the text without the needle.
nlohmann::json read_needles(Session& session, const NeedleTokens& tokens);

}  // namespace assay
