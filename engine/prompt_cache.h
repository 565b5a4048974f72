// Token ids of rendered chats. A conversation is rendered and encoded anew every turn although only its end is new; the
// ids of the turns that were seen before are kept. The same ids as encode_chat, always: a turn begins with a special
// token, over which no token reaches.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/chat_template.h"

namespace assay {

class PromptCache {
 public:
  explicit PromptCache(const Tokenizer& tokenizer, std::size_t most_bytes = std::size_t{16} << 20)
      : tokenizer_(&tokenizer), most_bytes_(most_bytes) {}

  // Errors as encode_chat.
  std::vector<TokenId> encode(const ChatRequest& request);
  std::uint64_t encoded_turns() const { return encoded_; }
  std::uint64_t kept_turns() const { return kept_; }

 private:
  using Turns = std::unordered_map<std::string, std::vector<TokenId>>;
  void append(std::vector<ChatPiece>& turn, bool first, std::vector<TokenId>& out);

  const Tokenizer* tokenizer_;
  std::size_t most_bytes_;
  // Two generations: when the young one is full it becomes the old one, and what was not used since is gone.
  Turns young_;
  Turns old_;
  std::size_t young_bytes_ = 0;
  std::uint64_t encoded_ = 0;
  std::uint64_t kept_ = 0;
};

}  // namespace assay
