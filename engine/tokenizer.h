// The gemma4 tokenizer: BPE over whole lines with byte fallback. encode and decode work on bytes; text need not be
// valid UTF-8 and decode(encode(x)) == x for every byte string x.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gguf.h"

namespace assay {

using TokenId = std::int32_t;

// tokenizer.ggml.token_type
enum class TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Which special tokens are recognised in a text.
enum class SpecialMode {
  kAll,          // control and user-defined: rendered templates
  kUserDefined,  // user-defined only, as llama.cpp with parse_special = false
  kNone,         // none: text from strangers cannot name a turn or a tool call
};
std::optional<SpecialMode> parse_special_mode(
    std::string_view name);  // "all", "user-defined", "none"

// A stretch of text with its trust. Ordinary text runs on across pieces, special tokens do not.
struct TextPiece {
  std::string_view text;
  SpecialMode mode = SpecialMode::kAll;
};

class Tokenizer {
 public:
  // Throws InputError naming the key and element: missing or inconsistent arrays, duplicate tokens, merges whose parts
  // or result are no tokens, special ids outside the vocabulary, no <|turn> or <turn|>. About 0.2 s for 262,144 tokens.
  static Tokenizer load(const GgufFile& file);

  int vocab_size() const { return static_cast<int>(types_.size()); }
  // add_bos does nothing when the vocabulary has no BOS. O(n log n) in the longest line. Throws InputError only when a
  // byte has neither a token nor a <0xNN> token in this vocabulary.
  std::vector<TokenId> encode(std::string_view text, bool add_bos, SpecialMode mode) const;
  std::vector<TokenId> encode(std::span<const TextPiece> pieces, bool add_bos) const;
  // Bytes, not necessarily valid UTF-8. Control tokens print nothing unless show_control. Throws InputError naming an
  // id outside [0, vocab_size).
  std::string decode(std::span<const TokenId> ids, bool show_control = false) const;
  // One token's bytes under the same rules.
  std::string token_bytes(TokenId id, bool show_control = false) const;

  std::string_view token_text(TokenId id) const;  // as in the vocabulary
  TokenType token_type(TokenId id) const { return types_[check(id)]; }
  std::optional<TokenId> find(std::string_view text) const;  // exact vocabulary text
  std::optional<TokenId> bos() const { return bos_; }
  TokenId turn_begin() const { return turn_begin_; }  // <|turn>
  TokenId turn_end() const { return turn_end_; }      // <turn|>
  // Those of <eos>, <turn|>, <|tool_response> that exist, ascending.
  std::span<const TokenId> stop_ids() const { return stops_; }
  bool is_stop(TokenId id) const;

 private:
  struct Special {
    std::string_view text;  // into text_
    TokenId id;
  };
  struct Merge {
    std::uint64_t pair;  // left << 32 | right; kEmpty when free
    std::uint32_t rank;
    TokenId result;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  std::size_t check(TokenId id) const;
  TokenId lookup(std::string_view text) const;  // -1 when absent
  void insert_text(TokenId id);
  const Merge* find_merge(TokenId left, TokenId right) const;
  void split_special(std::string_view text,
                     SpecialMode mode,
                     std::vector<std::string>& raw,
                     std::vector<TokenId>& ids) const;
  void encode_raw(std::string_view raw, std::vector<TokenId>& out) const;
  void encode_run(std::string_view run, std::vector<TokenId>& out) const;
  void emit_bytes(std::string_view bytes, std::vector<TokenId>& out) const;

  std::string text_;  // all token texts, end to end
  std::vector<std::uint32_t> ends_;
  std::vector<TokenType> types_;
  std::vector<TokenId> slots_;              // open-addressing table text -> id, -1 free
  std::vector<Merge> merges_;               // open-addressing table pair -> rank, result
  std::vector<Special> specials_;           // longest text first, then lowest id
  std::vector<std::uint8_t> special_lead_;  // [256] whether a special starts with this byte
  TokenId bytes_[256];                      // <0xNN>, -1 when absent
  std::optional<TokenId> bos_;
  TokenId turn_begin_ = -1;
  TokenId turn_end_ = -1;
  std::vector<TokenId> stops_;
};

// Turns a stream of bytes into a stream of valid UTF-8: holds back an unfinished character, and replaces each maximal
// invalid part by U+FFFD at the moment it is known to be invalid (the practice of the Unicode standard, section 3.9).
class Utf8Stream {
 public:
  // What became certain; always whole characters.
  std::string push(std::string_view bytes);
  // End of stream: an unfinished character becomes one U+FFFD.
  std::string finish();

 private:
  std::string held_;  // a proper prefix of a well-formed character, at most 3 bytes
};

// Decodes ids one by one into printable pieces. The tokenizer must outlive it.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, bool show_control = false)
      : tokenizer_(&tokenizer), show_control_(show_control) {}
  std::string push(TokenId id) { return utf8_.push(tokenizer_->token_bytes(id, show_control_)); }
  std::string finish() { return utf8_.finish(); }

 private:
  const Tokenizer* tokenizer_;
  bool show_control_;
  Utf8Stream utf8_;
};

}  // namespace assay
