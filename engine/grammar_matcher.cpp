#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>

#include "engine/grammar.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

std::size_t z(int n) { return static_cast<std::size_t>(n); }

constexpr std::size_t kMaxSituations = 4096;  // remembered at once

}  // namespace

// ---- vocabulary ----

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer), special_(z(tokenizer.vocab_size())) {
  std::vector<std::pair<std::string, TokenId>> texts;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenType type = tokenizer.token_type(id);
    const std::string_view text = tokenizer.token_text(id);
    const bool mark =
        type == TokenType::kControl ||
        (type == TokenType::kUserDefined && (text.starts_with("<|") || text.ends_with("|>")));
    special_[z(id)] = mark;
    if (mark) {
      if (!tokenizer.is_stop(id)) specials_.push_back(id);
    } else if (type == TokenType::kNormal || type == TokenType::kUserDefined ||
               type == TokenType::kByte) {
      std::string bytes = tokenizer.token_bytes(id);
      if (!bytes.empty() && bytes.size() <= 0xFFFF && !tokenizer.is_stop(id)) {
        texts.emplace_back(std::move(bytes), id);
      }
    }
  }
  std::sort(texts.begin(), texts.end());
  entries_.reserve(texts.size());
  std::string_view before;
  for (const auto& [bytes, id] : texts) {
    const auto same = std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end()).first;
    entries_.push_back({static_cast<std::uint32_t>(bytes_.size()),
                        static_cast<std::uint16_t>(bytes.size()),
                        static_cast<std::uint16_t>(same - before.begin()),
                        id});
    bytes_ += bytes;
    before = bytes;
  }
}

bool TokenMask::none() const {
  return std::all_of(bits_.begin(), bits_.end(), [](std::uint64_t w) { return w == 0; });
}

// ---- matcher ----

struct GrammarMatcher::Walk {
  // Where one reading of the text stands: a state that reads a symbol, and the calls it returns to.
  struct Reading {
    int state;
    int stack;
    auto operator<=>(const Reading&) const = default;
  };
  // Open calls, the innermost first; shared between readings. Number 0 is the empty stack.
  struct Frame {
    int back = -1;  // state after the call
    int below = 0;  // the calls around it
    int depth = 0;
    int distance = 0;  // symbols to the end of all of them
  };
  // A set of readings, and what is known of it. Number 0 is the one that allows nothing.
  struct Situation {
    std::vector<Reading> readings;
    bool may_end = false;
    int distance = Grammar::kNever;
    std::unique_ptr<std::array<int, 256>> next;  // by byte, -1 unknown
    std::unordered_map<TokenId, int> next_special;
    std::unique_ptr<TokenMask> mask;
    int farthest = 0;  // the largest distance behind a token of `mask`
  };

  std::shared_ptr<const Grammar> grammar;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  std::vector<TokenId> name_ids;  // of the grammar's special tokens
  std::vector<Frame> frames;
  std::map<std::pair<int, int>, int> frame_of;
  std::vector<Situation> situations;
  std::map<std::pair<std::vector<Reading>, bool>, int> situation_of;
  int now = 0;
  TokenMask tight;  // the last mask that kept tokens back

  Walk(std::shared_ptr<const Grammar> g, std::shared_ptr<const GrammarVocabulary> v)
      : grammar(std::move(g)), vocabulary(std::move(v)), tight(vocabulary->size()) {
    for (const std::string& name : grammar->names_) {
      const auto id = vocabulary->tokenizer().find(name);
      if (!id || !vocabulary->is_special(*id)) {
        throw InputError("grammar: the model has no special token '" + name + "'");
      }
      name_ids.push_back(*id);
    }
    clear();
    now = settle({{grammar->rules_[z(grammar->root_)].start, 0}});
  }

  void clear() {
    frames.assign(1, {});
    frame_of.clear();
    situations.clear();
    situations.emplace_back();
    situation_of.clear();
    situation_of[{{}, false}] = 0;
  }
  // Forgets all but where the text stands.
  void shrink() {
    std::vector<std::pair<int, std::vector<int>>> kept;
    for (const Reading& r : situations[z(now)].readings) {
      std::vector<int> backs;
      for (int f = r.stack; f != 0; f = frames[z(f)].below) backs.push_back(frames[z(f)].back);
      kept.emplace_back(r.state, std::move(backs));
    }
    const bool may_end = situations[z(now)].may_end;
    clear();
    std::vector<Reading> readings;
    for (auto& [state, backs] : kept) {
      int stack = 0;
      for (auto it = backs.rbegin(); it != backs.rend(); ++it) stack = push(*it, stack);
      readings.push_back({state, stack});
    }
    now = intern(std::move(readings), may_end);
  }

  int push(int back, int below) {
    const auto [it, fresh] = frame_of.try_emplace({back, below}, static_cast<int>(frames.size()));
    if (fresh) {
      const Frame& b = frames[z(below)];
      frames.push_back(
          {back,
           below,
           b.depth + 1,
           std::min(Grammar::kNever, b.distance + grammar->states_[z(back)].distance)});
    }
    return it->second;
  }

  int intern(std::vector<Reading> readings, bool may_end) {
    std::sort(readings.begin(), readings.end());
    const auto [it, fresh] =
        situation_of.try_emplace({readings, may_end}, static_cast<int>(situations.size()));
    if (!fresh) return it->second;
    Situation s;
    s.may_end = may_end;
    s.distance = may_end ? 0 : Grammar::kNever;
    for (const Reading& r : readings) {
      s.distance =
          std::min(s.distance, grammar->states_[z(r.state)].distance + frames[z(r.stack)].distance);
    }
    s.readings = std::move(readings);
    situations.push_back(std::move(s));
    return it->second;
  }

  // Follows empty edges, calls and returns until every reading wants a symbol.
  int settle(std::vector<Reading> open) {
    std::vector<Reading> readings;
    std::set<Reading> met;
    bool may_end = false;
    while (!open.empty()) {
      const Reading r = open.back();
      open.pop_back();
      if (!met.insert(r).second) continue;
      if (met.size() > 16 * kMaxGrammarReadings) too_many();
      const auto& state = grammar->states_[z(r.state)];
      bool reads = false;
      if (state.edges.empty()) {  // a rule's end
        if (r.stack == 0) {
          may_end = true;
        } else {
          open.push_back({frames[z(r.stack)].back, frames[z(r.stack)].below});
        }
        continue;
      }
      for (const auto& e : state.edges) {
        if (e.kind == Grammar::EdgeKind::kEmpty) {
          open.push_back({e.to, r.stack});
        } else if (e.kind != Grammar::EdgeKind::kCall) {
          reads = true;
        } else if (const int start = grammar->rules_[z(e.what)].start;
                   grammar->states_[z(e.to)].ends) {
          open.push_back({start, r.stack});  // nothing to come back for
        } else if (frames[z(r.stack)].depth < kMaxGrammarDepth) {
          open.push_back({start, push(e.to, r.stack)});
        }
      }
      if (reads) readings.push_back(r);
    }
    if (readings.size() > kMaxGrammarReadings) too_many();
    return intern(std::move(readings), may_end);
  }
  [[noreturn]] static void too_many() {
    throw InputError("grammar: more than " + std::to_string(kMaxGrammarReadings) +
                     " ways to read the same text; make it less ambiguous");
  }

  int step(int from, unsigned char byte) {
    auto& table = situations[z(from)].next;
    if (table == nullptr) {
      table = std::make_unique<std::array<int, 256>>();
      table->fill(-1);
    }
    if ((*table)[byte] >= 0) return (*table)[byte];
    std::vector<Reading> open;
    for (const Reading& r : situations[z(from)].readings) {
      for (const auto& e : grammar->states_[z(r.state)].edges) {
        if (e.kind == Grammar::EdgeKind::kBytes && grammar->sets_[z(e.what)][byte]) {
          open.push_back({e.to, r.stack});
        }
      }
    }
    const int to = settle(std::move(open));
    (*situations[z(from)].next)[byte] = to;  // settle may have moved the situations
    return to;
  }

  int step_special(int from, TokenId id) {
    if (const auto it = situations[z(from)].next_special.find(id);
        it != situations[z(from)].next_special.end()) {
      return it->second;
    }
    std::vector<Reading> open;
    for (const Reading& r : situations[z(from)].readings) {
      for (const auto& e : grammar->states_[z(r.state)].edges) {
        const bool fits = e.kind == Grammar::EdgeKind::kSpecial
                              ? name_ids[z(e.what)] == id
                              : e.kind == Grammar::EdgeKind::kOtherSpecial && other(e.what, id);
        if (fits) open.push_back({e.to, r.stack});
      }
    }
    const int to = settle(std::move(open));
    situations[z(from)].next_special[id] = to;
    return to;
  }
  bool other(int list, TokenId id) const {
    const auto& names = grammar->name_lists_[z(list)];
    return std::none_of(names.begin(), names.end(), [&](int n) { return name_ids[z(n)] == id; });
  }

  // Marks every token behind which at most `most` symbols are needed; gives the largest number met.
  int fill(TokenMask& mask, int most) {
    int farthest = 0;
    const auto consider = [&](int to, TokenId id) {
      const Situation& s = situations[z(to)];
      if ((s.readings.empty() && !s.may_end) || s.distance > most) return;
      farthest = std::max(farthest, s.distance);
      mask.allow(id);
    };
    std::vector<int> path{now};          // the situation after each byte of the entry
    std::size_t dead = ~std::size_t{0};  // entries that share more bytes than this are dead too
    for (const auto& entry : vocabulary->entries()) {
      if (entry.shared > dead) continue;
      dead = ~std::size_t{0};
      const std::string_view bytes = vocabulary->bytes(entry);
      path.resize(std::min<std::size_t>(path.size(), entry.shared + std::size_t{1}));
      while (path.size() <= bytes.size()) {
        const int to = step(path.back(), static_cast<unsigned char>(bytes[path.size() - 1]));
        if (to == 0) {
          dead = path.size() - 1;
          break;
        }
        path.push_back(to);
      }
      if (path.size() == bytes.size() + 1) consider(path.back(), entry.id);
    }
    for (const TokenId id : vocabulary->specials()) consider(step_special(now, id), id);
    if (situations[z(now)].may_end) {
      for (const TokenId id : vocabulary->tokenizer().stop_ids()) mask.allow(id);
    }
    return farthest;
  }

  const TokenMask& mask(int remaining) {
    if (situations.size() > kMaxSituations) shrink();
    if (situations[z(now)].mask == nullptr) {
      auto made = std::make_unique<TokenMask>(vocabulary->size());
      const int farthest = fill(*made, Grammar::kNever);
      situations[z(now)].mask = std::move(made);
      situations[z(now)].farthest = farthest;
    }
    const TokenMask& all = *situations[z(now)].mask;
    if (situations[z(now)].farthest < remaining) return all;
    tight = TokenMask(vocabulary->size());
    fill(tight, remaining - 1);
    return tight.none() ? *situations[z(now)].mask : tight;
  }
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                               std::shared_ptr<const GrammarVocabulary> vocabulary)
    : walk_(std::make_unique<Walk>(std::move(grammar), std::move(vocabulary))) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

const TokenMask& GrammarMatcher::mask(int remaining) { return walk_->mask(remaining); }
bool GrammarMatcher::may_end() const { return walk_->situations[z(walk_->now)].may_end; }
int GrammarMatcher::distance() const { return walk_->situations[z(walk_->now)].distance; }

bool GrammarMatcher::accept(TokenId id) {
  Walk& w = *walk_;
  if (w.vocabulary->tokenizer().is_stop(id)) return false;
  int to = w.now;
  if (w.vocabulary->is_special(id)) {
    to = w.step_special(to, id);
  } else {
    const std::string bytes = w.vocabulary->tokenizer().token_bytes(id);
    if (bytes.empty()) return false;
    for (const char c : bytes) to = w.step(to, static_cast<unsigned char>(c));
  }
  if (to == 0) return false;
  w.now = to;
  return true;
}

}  // namespace assay
