#include "engine/tokenizer.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <functional>
#include <queue>

#include "kernels/base/error.h"

namespace assay {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, the vocabulary's space
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxSpecialBytes = 256;
constexpr std::uint32_t kNone = ~std::uint32_t{0};

// Tokens of the chat format. Text from strangers must never become one of these, whatever type the file gives them.
constexpr std::string_view kMarkers[] = {
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<mask>",
    "<|think|>",
    "<|turn>",
    "<turn|>",
    "<|channel>",
    "<channel|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
    "<|image>",
    "<image|>",
    "<|audio>",
    "<audio|>",
    "<|image|>",
    "<|audio|>",
    "<|video|>",
    "</s>",
};

// Multiply-and-fold over 8 bytes a step; the tables below are filled from files, so every bit must count.
std::uint64_t hash_text(std::string_view s) {
  const auto mix = [](std::uint64_t a, std::uint64_t b) {
    __extension__ const unsigned __int128 p = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(p) ^ static_cast<std::uint64_t>(p >> 64);
  };
  std::uint64_t h = 0x9E3779B97F4A7C15ULL ^ s.size();
  std::size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, s.data() + i, 8);
    h = mix(h ^ w, 0xD6E8FEB86659FD93ULL);
  }
  std::uint64_t w = 0;
  if (i < s.size()) std::memcpy(&w, s.data() + i, s.size() - i);
  return mix(h ^ w, 0xA0761D6478BD642FULL);
}
std::uint64_t hash_pair(std::uint64_t pair) {
  pair = (pair ^ (pair >> 32)) * 0xD6E8FEB86659FD93ULL;
  pair = (pair ^ (pair >> 32)) * 0xD6E8FEB86659FD93ULL;
  return pair ^ (pair >> 32);
}
std::uint64_t pair_of(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

// What starts at s[0], by table 3-7 of the Unicode standard.
struct Utf8Head {
  std::size_t bytes;  // of the character, or of the maximal invalid or unfinished part; at least 1
  enum { kWhole, kInvalid, kUnfinished } state;
};
Utf8Head utf8_head(std::string_view s) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return {1, Utf8Head::kWhole};
  if (lead < 0xC2 || lead > 0xF4) return {1, Utf8Head::kInvalid};
  const std::size_t need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range keeps overlong forms, surrogates and values past U+10FFFF out.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < need; ++i) {
    if (i >= s.size()) return {i, Utf8Head::kUnfinished};
    const unsigned b = at(i);
    if (b < (i == 1 ? low : 0x80U) || b > (i == 1 ? high : 0xBFU)) return {i, Utf8Head::kInvalid};
  }
  return {need, Utf8Head::kWhole};
}

std::optional<unsigned> byte_token_value(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<unsigned>(c - '0');
    } else if (c >= 'A' && c <= 'F') {
      value = value * 16 + static_cast<unsigned>(c - 'A') + 10;
    } else {
      return std::nullopt;
    }
  }
  return value;
}

void append_with_spaces(std::string_view text, std::string& out) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t hit = text.find(kSpace, i);
    out.append(text.substr(i, hit - i));
    if (hit == std::string_view::npos) return;
    out += ' ';
    i = hit + kSpace.size();
  }
}

}  // namespace

std::optional<SpecialMode> parse_special_mode(std::string_view name) {
  if (name == "all") return SpecialMode::kAll;
  if (name == "user-defined") return SpecialMode::kUserDefined;
  if (name == "none") return SpecialMode::kNone;
  return std::nullopt;
}

// ---- loading ----

Tokenizer Tokenizer::load(const GgufFile& file) {
  if (file.text("tokenizer.ggml.model") != "gemma4") {
    file.refuse_key("tokenizer.ggml.model", "only 'gemma4' is implemented");
  }
  if (const auto pre = file.find_text("tokenizer.ggml.pre");
      pre && *pre != "gemma4" && *pre != "default") {
    file.refuse_key("tokenizer.ggml.pre", "only 'gemma4' is implemented");
  }
  if (file.find_boolean("tokenizer.ggml.add_space_prefix").value_or(false)) {
    file.refuse_key("tokenizer.ggml.add_space_prefix",
                    "a space prefix is not part of this tokenizer");
  }
  Tokenizer t;
  t.load_vocabulary(file);
  t.load_special(file);
  t.load_merges(file);
  return t;
}

void Tokenizer::load_vocabulary(const GgufFile& file) {
  const char* const kTokens = "tokenizer.ggml.tokens";
  const StringList& tokens = file.strings(kTokens);
  const std::size_t n = tokens.size();
  if (n == 0) file.refuse_key(kTokens, "an empty vocabulary");
  const auto same_length = [&](const char* key, std::size_t count) {
    if (count != n) {
      file.refuse_key(key,
                      std::to_string(count) + " elements for " + std::to_string(n) + " tokens");
    }
  };
  const char* const kTypes = "tokenizer.ggml.token_type";
  const std::vector<std::int64_t> types = file.integers(kTypes);
  same_length(kTypes, types.size());
  if (file.has("tokenizer.ggml.scores")) {
    same_length("tokenizer.ggml.scores", file.numbers("tokenizer.ggml.scores").size());
  }

  std::size_t total = 0;
  for (std::size_t i = 0; i < n; ++i) total += tokens[i].size();
  text_.reserve(total);
  ends_.reserve(n);
  types_.reserve(n);
  slots_.assign(std::bit_ceil(2 * n), -1);
  std::fill(std::begin(bytes_), std::end(bytes_), -1);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < n; ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string_view text = tokens[i];
    if (types[i] < 1 || types[i] > 6) {
      file.refuse_key(
          kTypes,
          "element " + std::to_string(i) + " is " + std::to_string(types[i]) + "; 1 to 6 exist");
    }
    text_ += text;
    ends_.push_back(static_cast<std::uint32_t>(text_.size()));
    types_.push_back(static_cast<TokenType>(types[i]));
    if (types_[i] == TokenType::kByte) {
      const auto value = byte_token_value(text);
      if (!value)
        file.refuse_key(
            kTokens,
            "element " + std::to_string(i) + " is of type byte but not of the form <0x1F>");
      bytes_[*value] = id;
    }
    if (text.empty()) continue;  // unreachable, and harmless
    std::size_t slot = hash_text(text) & mask;
    while (slots_[slot] >= 0) {
      if (token_text(slots_[slot]) == text) {
        file.refuse_key(kTokens,
                        "elements " + std::to_string(slots_[slot]) + " and " + std::to_string(i) +
                            " are the same token");
      }
      slot = (slot + 1) & mask;
    }
    slots_[slot] = id;
  }
}

void Tokenizer::load_special(const GgufFile& file) {
  const auto check_id = [&](std::string_view key, std::int64_t id) {
    if (id < 0 || id >= vocab_size()) {
      file.refuse_key(key,
                      "token " + std::to_string(id) + " is outside the vocabulary of " +
                          std::to_string(vocab_size()));
    }
  };
  for (const std::string_view key : file.keys()) {
    if (!key.starts_with("tokenizer.ggml.")) continue;
    if (key.ends_with("_token_id")) check_id(key, file.integer(key));
    if (key.ends_with("_token_ids")) {
      for (const std::int64_t id : file.integers(key)) check_id(key, id);
    }
  }
  const auto need = [&](std::string_view text) {
    const auto id = find(text);
    if (!id) file.refuse_key("tokenizer.ggml.tokens", "no token '" + std::string(text) + "'");
    // A file that types its turn marks otherwise would print them, and let BPE spell them.
    types_[static_cast<std::size_t>(*id)] = TokenType::kControl;
    return *id;
  };
  turn_begin_ = need("<|turn>");
  turn_end_ = need("<turn|>");
  if (const auto id = find("<|tool_response>")) {
    types_[static_cast<std::size_t>(*id)] = TokenType::kControl;  // as llama.cpp: it ends a turn
  }
  for (const std::string_view text : {"<eos>", "<turn|>", "<|tool_response>"}) {
    if (const auto id = find(text)) stops_.push_back(*id);
  }
  std::sort(stops_.begin(), stops_.end());
  bos_ = find("<bos>");
  if (const auto id = file.find_integer("tokenizer.ggml.bos_token_id"); !bos_ && id)
    bos_ = static_cast<TokenId>(*id);

  for (std::size_t i = 0; i < types_.size(); ++i) {
    const TokenType type = types_[i];
    if (type != TokenType::kControl && type != TokenType::kUnknown &&
        type != TokenType::kUserDefined)
      continue;
    const std::string_view text = token_text(static_cast<TokenId>(i));
    if (text.empty()) continue;
    // A user-defined run of U+2581 is reached through BPE, where the text has spaces.
    if (type == TokenType::kUserDefined && text.find(kSpace) != std::string_view::npos) continue;
    if (text.size() > kMaxSpecialBytes) {
      file.refuse_key("tokenizer.ggml.tokens",
                      "element " + std::to_string(i) + " is a special token of " +
                          std::to_string(text.size()) + " bytes; " +
                          std::to_string(kMaxSpecialBytes) + " are accepted");
    }
    specials_.push_back(static_cast<TokenId>(i));
  }
  std::sort(specials_.begin(), specials_.end(), [&](TokenId a, TokenId b) {
    return token_text(a) < token_text(b);
  });

  for (int c = 0; c < 128; ++c) {
    const char byte = static_cast<char>(c);
    const auto id = find(byte == ' ' ? kSpace : std::string_view(&byte, 1));
    ascii_[c] = id && spellable(*id) ? *id : -1;
  }
}

void Tokenizer::load_merges(const GgufFile& file) {
  const char* const kMerges = "tokenizer.ggml.merges";
  const StringList& merges = file.strings(kMerges);
  merges_.assign(std::bit_ceil(2 * merges.size() + 1), Merge{});
  const std::size_t mask = merges_.size() - 1;
  std::string joined;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string_view text = merges[i];
    // Tokens hold U+2581 for a space, so the first space after the first byte separates.
    const std::size_t space = text.size() < 3 ? std::string_view::npos : text.find(' ', 1);
    if (space == std::string_view::npos || space + 1 >= text.size()) {
      file.refuse_key(
          kMerges, "element " + std::to_string(i) + " is not two parts with a space between them");
    }
    const std::string_view parts[] = {text.substr(0, space), text.substr(space + 1)};
    const auto left = find(parts[0]);
    const auto right = find(parts[1]);
    joined.assign(parts[0]);
    joined += parts[1];
    const auto result = find(joined);
    if (!left || !right || !result) {
      file.refuse_key(kMerges,
                      "element " + std::to_string(i) + ": its " +
                          (!left    ? "left part"
                           : !right ? "right part"
                                    : "result") +
                          " is not in the vocabulary");
    }
    // Spelling out a control token must not produce it.
    if (!spellable(*left) || !spellable(*right) || !spellable(*result)) continue;
    const std::uint64_t pair = pair_of(*left, *right);
    std::size_t slot = hash_pair(pair) & mask;
    while (merges_[slot].pair != kFree && merges_[slot].pair != pair) slot = (slot + 1) & mask;
    if (merges_[slot].pair == kFree) merges_[slot] = {pair, static_cast<std::uint32_t>(i), *result};
  }
}

bool Tokenizer::spellable(TokenId id) const {
  const TokenType type = types_[static_cast<std::size_t>(id)];
  if (type == TokenType::kNormal) return true;
  if (type != TokenType::kUserDefined) return false;
  return std::find(std::begin(kMarkers), std::end(kMarkers), token_text(id)) == std::end(kMarkers);
}

// ---- look-up ----

std::size_t Tokenizer::check(TokenId id) const {
  if (id < 0 || id >= vocab_size()) {
    throw InputError("token " + std::to_string(id) + " is outside the vocabulary of " +
                     std::to_string(vocab_size()));
  }
  return static_cast<std::size_t>(id);
}

std::string_view Tokenizer::token_text(TokenId id) const {
  // Not types_.size(): also used while the table is filled.
  assert(id >= 0 && static_cast<std::size_t>(id) < ends_.size());
  const auto i = static_cast<std::size_t>(id);
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(text_).substr(begin, ends_[i] - begin);
}

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash_text(text) & mask; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    if (token_text(slots_[slot]) == text) return slots_[slot];
  }
  return std::nullopt;
}

const Tokenizer::Merge* Tokenizer::find_merge(TokenId left, TokenId right) const {
  if (left < 0 || right < 0) return nullptr;
  const std::uint64_t pair = pair_of(left, right);
  const std::size_t mask = merges_.size() - 1;
  for (std::size_t slot = hash_pair(pair) & mask; merges_[slot].pair != kFree;
       slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) return &merges_[slot];
  }
  return nullptr;
}

bool Tokenizer::is_stop(TokenId id) const {
  return std::binary_search(stops_.begin(), stops_.end(), id);
}

// ---- encode ----

std::vector<TokenId> Tokenizer::encode(std::string_view text,
                                       bool add_bos,
                                       SpecialMode mode) const {
  const TextPiece piece{text, mode};
  return encode(std::span(&piece, 1), add_bos);
}

std::vector<TokenId> Tokenizer::encode(std::span<const TextPiece> pieces, bool add_bos) const {
  std::vector<TokenId> out;
  if (add_bos && bos_) out.push_back(*bos_);
  std::size_t total = 0;
  for (const TextPiece& p : pieces) total += p.text.size();
  if (total > kMaxTextBytes) {
    throw InputError("a text of " + std::to_string(total) + " bytes; " +
                     std::to_string(kMaxTextBytes) + " are accepted");
  }
  std::string joined;
  std::string_view text = pieces.size() == 1 ? pieces[0].text : std::string_view();
  if (pieces.size() > 1) {
    joined.reserve(total);
    for (const TextPiece& p : pieces) joined += p.text;
    text = joined;
  }
  std::vector<Match> matches;
  std::size_t base = 0;
  for (const TextPiece& p : pieces) {
    match_special(text.substr(base, p.text.size()), base, p.mode, matches);
    base += p.text.size();
  }
  std::size_t from = 0;
  for (const Match& m : matches) {
    encode_raw(text.substr(from, m.at - from), out);
    out.push_back(m.id);
    from = m.at + m.length;
  }
  encode_raw(text.substr(from), out);
  return out;
}

// The rule is: specials in order of length, each splitting what is left of the text at every occurrence from the left.
// Same result here: collect all occurrences in one pass, then take them in that order where still free.
void Tokenizer::match_special(std::string_view text,
                              std::size_t base,
                              SpecialMode mode,
                              std::vector<Match>& out) const {
  if (mode == SpecialMode::kNone || specials_.empty() || text.empty()) return;
  std::vector<Match> found;
  for (std::size_t at = 0; at < text.size(); ++at) {
    // Narrow the sorted specials byte by byte to those that start with what stands here.
    auto low = specials_.begin();
    auto high = specials_.end();
    for (std::size_t depth = 0; at + depth < text.size() && low != high; ++depth) {
      const auto byte = static_cast<unsigned char>(text[at + depth]);
      const auto key = [&](TokenId id) -> int {
        const std::string_view s = token_text(id);
        return depth < s.size() ? static_cast<unsigned char>(s[depth]) : -1;
      };
      low = std::partition_point(low, high, [&](TokenId id) { return key(id) < byte; });
      high = std::partition_point(low, high, [&](TokenId id) { return key(id) <= byte; });
      if (low == high || token_text(*low).size() != depth + 1) continue;
      if (mode == SpecialMode::kAll ||
          types_[static_cast<std::size_t>(*low)] == TokenType::kUserDefined) {
        found.push_back({at, depth + 1, *low});
      }
    }
  }
  if (found.empty()) return;
  std::sort(found.begin(), found.end(), [&](const Match& a, const Match& b) {
    if (a.length != b.length) return a.length > b.length;
    if (a.id != b.id) return a.id < b.id;
    return a.at < b.at;
  });
  std::vector<bool> taken(text.size(), false);
  const std::size_t first = out.size();
  for (const Match& m : found) {
    // What was taken is at least as long, so an overlap covers one of the two ends.
    if (taken[m.at] || taken[m.at + m.length - 1]) continue;
    std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(m.at), m.length, true);
    out.push_back({base + m.at, m.length, m.id});
  }
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(first),
            out.end(),
            [](const Match& a, const Match& b) { return a.at < b.at; });
}

void Tokenizer::encode_raw(std::string_view raw, std::vector<TokenId>& out) const {
  for (std::size_t i = 0; i < raw.size();) {
    const bool newline = raw[i] == '\n';
    std::size_t end = newline ? raw.find_first_not_of('\n', i) : raw.find('\n', i);
    if (end == std::string_view::npos) end = raw.size();
    const std::string_view run = raw.substr(i, end - i);
    i = end;
    if (newline) {
      if (const auto id = find(run); id && spellable(*id)) {
        out.push_back(*id);
        continue;
      }
    }
    encode_run(run, out);
  }
}

TokenId Tokenizer::symbol(std::string_view character) const {
  if (character.size() == 1) {
    const auto byte = static_cast<unsigned char>(character[0]);
    if (byte < 128) return ascii_[byte];
  }
  if (character == kSpace) return -1;  // a literal U+2581 is not a space
  const auto id = find(character);
  return id && spellable(*id) ? *id : -1;
}

// BPE: merge the adjacent pair of lowest rank, leftmost first, until none is left. A heap of (rank, position) with
// stale entries skipped, O(n log n): a run can be a whole file without a newline.
void Tokenizer::encode_run(std::string_view run, std::vector<TokenId>& out) const {
  struct Symbol {
    TokenId id;              // or ~offset of a character without a token
    std::uint32_t previous;  // kNone at the ends
    std::uint32_t next;
    std::uint32_t rank;  // of the merge with the next symbol, kNone when there is none
  };
  std::vector<Symbol> symbols;
  symbols.reserve(run.size());
  for (std::size_t at = 0; at < run.size();) {
    const Utf8Head head = utf8_head(run.substr(at));
    // An invalid part is taken byte by byte: each becomes its byte token.
    const std::size_t bytes = head.state == Utf8Head::kWhole ? head.bytes : 1;
    const TokenId id = symbol(run.substr(at, bytes));
    const auto i = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back(
        {id >= 0 ? id : ~static_cast<TokenId>(at), i - 1, i + 1, kNone});  // i - 1 of 0 is kNone
    at += bytes;
  }
  symbols.back().next = kNone;

  struct Entry {
    std::uint32_t rank;
    std::uint32_t at;
    bool operator>(const Entry& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto rank_pair = [&](std::uint32_t at) {
    Symbol& s = symbols[at];
    const Merge* m = s.next == kNone ? nullptr : find_merge(s.id, symbols[s.next].id);
    s.rank = m == nullptr ? kNone : m->rank;
    return s.rank;
  };
  std::vector<Entry> initial;
  for (std::uint32_t i = 0; i < symbols.size(); ++i) {
    if (const std::uint32_t rank = rank_pair(i); rank != kNone) initial.push_back({rank, i});
  }
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue(std::greater<>{},
                                                                       std::move(initial));
  while (!queue.empty()) {
    const Entry e = queue.top();
    queue.pop();
    Symbol& left = symbols[e.at];
    if (left.rank != e.rank) continue;  // one of the two has been merged since
    Symbol& right = symbols[left.next];
    left.id = find_merge(left.id, right.id)->result;
    right.rank = kNone;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = e.at;
    if (const std::uint32_t rank = rank_pair(e.at); rank != kNone) queue.push({rank, e.at});
    if (left.previous != kNone) {
      if (const std::uint32_t rank = rank_pair(left.previous); rank != kNone)
        queue.push({rank, left.previous});
    }
  }

  for (std::uint32_t i = 0; i != kNone; i = symbols[i].next) {
    if (symbols[i].id >= 0) {
      out.push_back(symbols[i].id);
      continue;
    }
    const std::string_view rest = run.substr(static_cast<std::size_t>(~symbols[i].id));
    const Utf8Head head = utf8_head(rest);
    const std::string_view character =
        rest.substr(0, head.state == Utf8Head::kWhole ? head.bytes : 1);
    for (const char c : character) {
      const TokenId id = bytes_[static_cast<unsigned char>(c)];
      if (id < 0) {
        throw InputError("the vocabulary has no token for byte " +
                         std::to_string(static_cast<int>(static_cast<unsigned char>(c))));
      }
      out.push_back(id);
    }
  }
}

// ---- decode ----

std::string Tokenizer::token_bytes(TokenId id, bool show_control) const {
  const TokenType type = types_[check(id)];
  const std::string_view text = token_text(id);
  std::string out;
  switch (type) {
    case TokenType::kByte:
      out += static_cast<char>(byte_token_value(text).value_or(0));
      break;
    case TokenType::kControl:
    case TokenType::kUnknown:
      if (show_control) out = text;
      break;
    case TokenType::kNormal:
    case TokenType::kUserDefined:
    case TokenType::kUnused:
      append_with_spaces(text, out);
      break;
  }
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool show_control) const {
  std::string out;
  for (const TokenId id : ids) out += token_bytes(id, show_control);
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string out;
  held_ += bytes;
  std::size_t at = 0;
  while (at < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(at);
    const Utf8Head head = utf8_head(rest);
    if (head.state == Utf8Head::kUnfinished) break;
    if (head.state == Utf8Head::kWhole) {
      out += rest.substr(0, head.bytes);
    } else {
      out += "\xEF\xBF\xBD";
    }
    at += head.bytes;
  }
  held_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  if (held_.empty()) return {};
  held_.clear();
  return "\xEF\xBF\xBD";
}

}  // namespace assay
