#include "engine/main/needle_read.h"

#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "engine/main/tier_tokens.h"
#include "engine/sampler.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

using nlohmann::json;

// How far the logit of `id` lies above the best other one.
double lead_of(std::span<const float> logits, TokenId id) {
  float best = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<TokenId>(i) != id) best = std::max(best, logits[i]);
  }
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - static_cast<double>(best);
}

// Every answer behind `text`: [{logprobs, found, margin}].
json answers_behind(Session& session, const std::vector<TokenId>& text, const NeedleTokens& t) {
  session.reset();
  session.feed_greedy(text);
  json out = json::array();
  for (std::size_t n = 0; n < t.asks.size(); ++n) {
    auto logits = session.feed(t.asks[n]);
    json logprobs = json::array();
    bool found = true;
    const double margin = lead_of(logits, t.answers[n].front());
    for (const TokenId id : t.answers[n]) {
      logprobs.push_back(static_cast<double>(logits[static_cast<std::size_t>(id)]) -
                         log_sum_exp(logits));
      found = found && lead_of(logits, id) > 0.0;
      logits = session.feed(std::span(&id, 1));
    }
    out.push_back({{"logprobs", logprobs}, {"found", found}, {"margin", margin}});
  }
  return out;
}

}  // namespace

int NeedleTokens::total() const {
  std::size_t sum = text.size();
  for (const auto& ids : asks) sum += ids.size();
  for (const auto& ids : answers) sum += ids.size();
  return static_cast<int>(sum);
}

NeedleTokens needle_tokens(const NeedleCheck& check, const Tokenizer& tokenizer) {
  const auto encode = [&](const std::string& text) {
    return tokenizer.encode(text, false, SpecialMode::kNone);
  };
  NeedleTokens out;
  const std::vector<TokenId> stop = encode(".\n");
  std::size_t hidden = 0;
  for (const Needle& n : needles()) {
    out.asks.push_back(encode(n.ask));
    out.answers.push_back(encode(n.answer));
    hidden += out.asks.back().size() + out.answers.back().size() + stop.size();
  }
  const std::size_t parts = out.asks.size() + 1;
  if (hidden + parts > static_cast<std::size_t>(check.tokens))
    throw UserError("needle check " + check.id + ": its needles have " + std::to_string(hidden) +
                    " tokens of this model's");
  const auto hay =
      first_tokens("pinned_prose", check.tokens - static_cast<int>(hidden), true, tokenizer);
  for (std::size_t part = 0; part < parts; ++part) {
    const auto from = hay.begin() + static_cast<std::ptrdiff_t>(part * hay.size() / parts);
    const auto to = hay.begin() + static_cast<std::ptrdiff_t>((part + 1) * hay.size() / parts);
    for (auto* text : {&out.text, &out.without}) {
      text->insert(text->end(), from, to);
      if (part + 1 == parts) continue;
      const std::vector<TokenId>& answer =
          out.answers[text == &out.text ? part : (part + 1) % out.answers.size()];
      for (const auto& piece : {std::span<const TokenId>(out.asks[part]),
                                std::span<const TokenId>(answer),
                                std::span<const TokenId>(stop)})
        text->insert(text->end(), piece.begin(), piece.end());
    }
  }
  return out;
}

json read_needles(Session& session, const NeedleTokens& tokens) {
  json out = answers_behind(session, tokens.text, tokens);
  const json without = answers_behind(session, tokens.without, tokens);
  for (std::size_t n = 0; n < out.size(); ++n) out[n]["without"] = without[n].at("logprobs");
  return out;
}

}  // namespace assay
