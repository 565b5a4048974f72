#include "engine/perplexity.h"

#include <algorithm>
#include <span>

#include "engine/sampler.h"

namespace assay {
namespace {

// -log softmax(logits)[id]
double loss_of(std::span<const float> logits, TokenId id) {
  return log_sum_exp(logits) - static_cast<double>(logits[static_cast<std::size_t>(id)]);
}

// The last token is only predicted, never fed.
Perplexity::Window score(Session& session,
                         std::span<const TokenId> bos,
                         std::span<const TokenId> window) {
  std::vector<TokenId> fed(bos.begin(), bos.end());
  fed.insert(fed.end(), window.begin(), window.end() - 1);
  const int shift = 1 - static_cast<int>(bos.size());  // of the token that position p predicts
  Perplexity::Window w;
  session.reset();
  session.feed(
      fed,
      [&](int p) { return p + shift >= kFirstScored; },
      [&](int p, std::span<const float> logits) {
        w.loss += loss_of(logits, window[static_cast<std::size_t>(p + shift)]);
        ++w.scored;
      });
  return w;
}

}  // namespace

Perplexity perplexity(Model& model,
                      const std::string& text,
                      const std::function<void(std::size_t, std::size_t)>& progress) {
  const auto bos = model.tokenizer().encode("", true, SpecialMode::kNone);
  const auto ids = model.tokenizer().encode(text, false, SpecialMode::kNone);
  Session session(model);
  Perplexity out;
  out.text_tokens = ids.size();
  for (std::size_t at = 0; ids.size() - at > kFirstScored; at += kPerplexityWindow) {
    const std::size_t n = std::min<std::size_t>(kPerplexityWindow, ids.size() - at);
    out.windows.push_back(score(session, bos, std::span(ids).subspan(at, n)));
    out.loss += out.windows.back().loss;
    out.scored += out.windows.back().scored;
    if (progress) progress(at + n, ids.size());
    if (n < kPerplexityWindow) break;
  }
  return out;
}

}  // namespace assay
