// The gemma4 tokenizer: BPE over whole lines with byte fallback. encode and decode work on bytes; text need not be
// valid UTF-8 and decode(encode(x)) == x for every byte string x (with control tokens shown, where x names some).
// For that a literal U+2581 in the text, which in the vocabulary stands for a space, goes through byte tokens; this is
// the one place where the ids differ from llama.cpp's.
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
  // or result are no tokens, special ids outside the vocabulary, no <|turn> or <turn|>.
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
  struct Merge {
    std::uint64_t pair = kFree;  // left << 32 | right
    std::uint32_t rank = 0;
    TokenId result = -1;
  };
  struct Match {  // of a special token in a text
    std::size_t at;
    std::size_t length;
    TokenId id;
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  Tokenizer() = default;
  void load_vocabulary(const GgufFile& file);
  void load_special(const GgufFile& file);
  void load_merges(const GgufFile& file);
  std::size_t check(TokenId id) const;
  bool spellable(TokenId id) const;  // may ordinary text become this token?
  const Merge* find_merge(TokenId left, TokenId right) const;
  TokenId symbol(std::string_view character) const;
  void match_special(std::string_view text,
                     std::size_t base,
                     SpecialMode mode,
                     std::vector<Match>& out) const;
  void encode_raw(std::string_view raw, std::vector<TokenId>& out) const;
  void encode_run(std::string_view run, std::vector<TokenId>& out) const;

  std::string text_;  // all token texts, end to end
  std::vector<std::uint32_t> ends_;
  std::vector<TokenType> types_;
  std::vector<TokenId> slots_;     // open-addressing table text -> id, -1 free
  std::vector<Merge> merges_;      // open-addressing table pair -> rank and result
  std::vector<TokenId> specials_;  // in order of their text
  TokenId ascii_[128] = {};  // symbol of a one-byte character (a space is U+2581), -1 when none
  TokenId bytes_[256] = {};  // <0xNN>, -1 when absent
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
