// Grammars that a reply must follow. A grammar is a set of rules over bytes and special tokens, compiled to one automaton
// with calls (so rules may nest and recurse to a bounded depth); a matcher walks it and says which tokens may come next.
//
// Rules are written as in GBNF:
//   root  ::= "yes" | "no" | list          # alternatives, sequences, ( ), comments
//   list  ::= [a-z]+ ("," [^,\n]{1,20})*   # classes of characters, * + ? {m} {m,} {m,n}, . is any character
//   call  ::= <|tool_call> "x" <tool_call|> !<|tool_call>   # a special token by its text; any special token but that one
// Literals know \n \r \t \\ \" \xHH \uHHHH \UHHHHHHHH. Characters are matched as well-formed UTF-8.
#pragma once
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer.h"

namespace assay {

inline constexpr std::size_t kMaxGrammarBytes = std::size_t{64} << 10;
inline constexpr int kMaxGrammarStates = 4096;
inline constexpr int kMaxGrammarDepth = 128;  // rules that may be open at once while matching
inline constexpr std::size_t kMaxGrammarReadings =
    1024;  // ways to read one text, kept side by side

using ByteSet = std::bitset<256>;

class Grammar {
 public:
  // Throws InputError naming line and rule: syntax, unknown or missing rules, left recursion, a rule that can never end,
  // more than kMaxGrammarBytes or kMaxGrammarStates.
  static Grammar parse(std::string_view text);

  int states() const { return static_cast<int>(states_.size()); }
  // Fewest bytes and special tokens of a complete text.
  int shortest() const { return states_[z(rules_[z(root_)].start)].distance; }

 private:
  friend class GrammarBuilder;
  friend class GrammarMatcher;
  static std::size_t z(int n) { return static_cast<std::size_t>(n); }

  enum class EdgeKind : std::uint8_t { kEmpty, kBytes, kSpecial, kOtherSpecial, kCall };
  struct Edge {
    EdgeKind kind;
    int what;  // index into sets_, names_, name_lists_ or rules_
    int to;
  };
  static constexpr int kNever = 1 << 29;
  struct State {
    std::vector<Edge> edges;
    int distance = kNever;  // fewest symbols from here to the end of the rule
    bool ends = false;      // nothing but the end of the rule follows
  };
  struct Rule {
    std::string name;
    int start = 0;
    int end = 0;
  };

  std::vector<State> states_;
  std::vector<Rule> rules_;
  std::vector<ByteSet> sets_;
  std::vector<std::string> names_;            // special tokens by text
  std::vector<std::vector<int>> name_lists_;  // indices into names_: any special token but these
  int root_ = 0;
};

// Builds a grammar state by state; the parser of rules and the compiler of JSON schemas do.
class GrammarBuilder {
 public:
  GrammarBuilder() = default;
  explicit GrammarBuilder(Grammar grammar) : grammar_(std::move(grammar)) {}  // to build around it
  // Throws InputError beyond kMaxGrammarStates.
  int state();
  int rule(std::string name);  // with a start and an end state, nothing between
  int start(int rule) const;
  int end(int rule) const;
  int root() const { return grammar_.root_; }
  int rules() const { return static_cast<int>(grammar_.rules_.size()); }

  void empty(int from, int to);
  void bytes(int from, const ByteSet& set, int to);
  void literal(int from, std::string_view text, int to);
  // One character out of [first, last] ranges, sorted and without overlap, as well-formed UTF-8.
  struct CharRange {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
  };
  void characters(int from, std::span<const CharRange> ranges, int to);
  void special(int from, std::string_view token, int to);
  void any_special_but(int from, std::span<const std::string> tokens, int to);
  void call(int from, int rule, int to);

  // Checks what Grammar::parse promises.
  Grammar finish(int root);

 private:
  void edge(int from, Grammar::EdgeKind kind, int what, int to);
  int name(std::string_view token);
  void measure();
  void refuse_endless(const std::vector<bool>& reached) const;
  void refuse_left_recursion(const std::vector<bool>& reached) const;
  std::vector<bool> reachable() const;

  Grammar grammar_;
};

// Every character but surrogates; [^...] is their complement.
std::vector<GrammarBuilder::CharRange> complement(std::vector<GrammarBuilder::CharRange> ranges);

// A vocabulary as matchers read it: ordinary tokens sorted by their bytes, marks of the format apart. The tokenizer must
// outlive it.
class GrammarVocabulary {
 public:
  explicit GrammarVocabulary(const Tokenizer& tokenizer);

  struct Entry {
    std::uint32_t offset;  // into bytes()
    std::uint16_t length;
    std::uint16_t shared;  // leading bytes that it shares with the entry before
    TokenId id;
  };
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  int size() const { return tokenizer_->vocab_size(); }
  std::span<const Entry> entries() const { return entries_; }
  std::string_view bytes(const Entry& e) const {
    return std::string_view(bytes_).substr(e.offset, e.length);
  }
  // Tokens that are marks and not text (control tokens, <|..> and <..|>), stop tokens excepted.
  std::span<const TokenId> specials() const { return specials_; }
  bool is_special(TokenId id) const { return special_[static_cast<std::size_t>(id)]; }

 private:
  const Tokenizer* tokenizer_;
  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<TokenId> specials_;
  std::vector<bool> special_;
};

// Which tokens may come next.
class TokenMask {
 public:
  explicit TokenMask(int vocab) : bits_((static_cast<std::size_t>(vocab) + 63) / 64) {}
  bool allows(TokenId id) const {
    return (bits_[static_cast<std::size_t>(id) / 64] >> (static_cast<unsigned>(id) % 64) & 1) != 0;
  }
  void allow(TokenId id) {
    bits_[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1}
                                                << (static_cast<unsigned>(id) % 64);
  }
  bool none() const;

 private:
  std::vector<std::uint64_t> bits_;
};

// One reply's walk through a grammar. What it learns about the grammar is kept for the tokens that follow.
class GrammarMatcher {
 public:
  // Throws InputError when the vocabulary lacks a special token that the grammar names.
  GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                 std::shared_ptr<const GrammarVocabulary> vocabulary);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Tokens that may follow, stop tokens where the text may end. Of `remaining` tokens (this one included) enough are
  // kept back to finish the text, if it can still be finished. An empty mask is a dead end: the vocabulary or the depth
  // limit allows nothing that the grammar wants.
  const TokenMask& mask(int remaining);
  bool may_end() const;
  // Fewest tokens that complete the text, were every byte a token.
  int distance() const;
  // Takes a token. False, and nothing changes, when the mask did not allow it. Stop tokens are not taken.
  bool accept(TokenId id);
  // Throws InputError when more than kMaxGrammarReadings readings of the text are open; so does mask().

 private:
  struct Walk;
  std::unique_ptr<Walk> walk_;
};

}  // namespace assay
