#include "engine/prompt_cache.h"

#include <nlohmann/json.hpp>

namespace assay {
namespace {

constexpr std::string_view kTurn = "<|turn>";
constexpr std::string_view kBos = "<bos>";

}  // namespace

std::vector<TokenId> PromptCache::encode(const ChatRequest& request) {
  std::vector<ChatPiece> pieces = render_chat(request);
  pieces.front().text.erase(0, kBos.size());  // the tokenizer's own BOS instead, whatever its text
  std::vector<TokenId> ids;
  std::vector<ChatPiece> turn;
  bool first = true;
  for (ChatPiece& piece : pieces) {
    if (!piece.trusted) {
      turn.push_back(std::move(piece));
      continue;
    }
    std::string_view text = piece.text;
    while (!text.empty()) {
      const std::size_t next = text.find(kTurn, 1);
      if (text.starts_with(kTurn) && !turn.empty()) {
        append(turn, first, ids);
        first = false;
      }
      turn.push_back({std::string(text.substr(0, next)), true});
      text = next == std::string_view::npos ? std::string_view() : text.substr(next);
    }
  }
  append(turn, first, ids);
  return ids;
}

// Adds a turn's ids and empties it.
void PromptCache::append(std::vector<ChatPiece>& turn, bool first, std::vector<TokenId>& out) {
  std::string key(1, first ? '1' : '0');
  for (const ChatPiece& p : turn) {
    key += p.trusted ? 't' : 'g';
    key += std::to_string(p.text.size());
    key += ':';
    key += p.text;
  }
  auto it = young_.find(key);
  if (it == young_.end()) {
    std::vector<TokenId> ids;
    if (const auto was = old_.find(key); was != old_.end()) {
      ids = std::move(was->second);
      old_.erase(was);
      ++kept_;
    } else {
      std::vector<TextPiece> views;
      views.reserve(turn.size());
      for (const ChatPiece& p : turn) {
        views.push_back({p.text, p.trusted ? SpecialMode::kAll : SpecialMode::kNone});
      }
      ids = tokenizer_->encode(views, first);
      ++encoded_;
    }
    const std::size_t bytes = key.size() + ids.size() * sizeof(TokenId);
    if (young_bytes_ + bytes > most_bytes_ / 2) {
      old_ = std::move(young_);
      young_.clear();
      young_bytes_ = 0;
    }
    young_bytes_ += bytes;
    it = young_.emplace(std::move(key), std::move(ids)).first;
  } else {
    ++kept_;
  }
  out.insert(out.end(), it->second.begin(), it->second.end());
  turn.clear();
}

}  // namespace assay
