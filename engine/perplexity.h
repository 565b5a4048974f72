// How well a model predicts a text.
//
// The text is encoded without BOS and cut into windows of kPerplexityWindow tokens. Each window is a sequence of its own,
// BOS in front; its tokens from number kFirstScored on are scored, so that every scored token has at least that much
// context. A last, shorter window is scored likewise. The loss is -log softmax of the capped logits, in double.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/forward.h"

namespace assay {

inline constexpr int kPerplexityWindow =
    1024;  // tokens of the text; the model needs as much context
inline constexpr int kFirstScored = 256;

struct Perplexity {
  struct Window {
    int scored = 0;
    double loss = 0.0;  // sum over the scored tokens
  };
  std::size_t text_tokens = 0;
  std::vector<Window> windows;
  int scored = 0;     // 0 when the text has no more than kFirstScored tokens
  double loss = 0.0;  // sum over all scored tokens
  double mean() const { return loss / scored; }
};

// progress(tokens done, tokens of the text) after each window.
Perplexity perplexity(Model& model,
                      const std::string& text,
                      const std::function<void(std::size_t, std::size_t)>& progress = {});

}  // namespace assay
