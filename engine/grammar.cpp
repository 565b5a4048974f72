#include "engine/grammar.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/base/error.h"

namespace assay {
namespace {

using CharRange = GrammarBuilder::CharRange;

constexpr int kMaxNesting = 64;       // of ( ) in a rule
constexpr int kMaxRepetition = 1024;  // m and n of {m,n}

std::size_t z(int n) { return static_cast<std::size_t>(n); }

void append_utf8(std::uint32_t c, std::string& out) {
  const auto put = [&](std::uint32_t b) { out += static_cast<char>(b); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

// Splits [first, last] into pieces whose UTF-8 forms are products of byte ranges.
void utf8_pieces(std::uint32_t first, std::uint32_t last, std::vector<CharRange>& out) {
  for (const std::uint32_t edge : {0x7FU, 0x7FFU, 0xD7FFU, 0xFFFFU}) {
    if (first <= edge && edge < last) {
      utf8_pieces(first, edge, out);
      utf8_pieces(edge + 1, last, out);
      return;
    }
  }
  if (first >= 0xD800 && last <= 0xDFFF) return;
  if (first >= 0xD800 && first <= 0xDFFF) first = 0xE000;
  for (int low = 6; low <= 18; low += 6) {
    const std::uint32_t mask = (1U << static_cast<unsigned>(low)) - 1;
    if (last < 0x80 || (first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      utf8_pieces(first, first | mask, out);
      utf8_pieces((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      utf8_pieces(first, (last & ~mask) - 1, out);
      utf8_pieces(last & ~mask, last, out);
      return;
    }
  }
  out.push_back({first, last});
}

// ---- the rules' syntax tree ----

struct Node {
  enum class Kind { kSequence, kChoice, kRepeat, kLiteral, kClass, kSpecial, kOtherSpecial, kRule };
  Kind kind = Kind::kSequence;
  std::vector<Node> children = {};
  std::string text = {};  // literal, token or rule
  std::vector<CharRange> ranges = {};
  int least = 0;
  int most = -1;  // -1: any number
  int line = 0;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  struct Rule {
    std::string name;
    Node body;
    int line = 0;
  };
  std::vector<Rule> run() {
    std::vector<Rule> rules;
    for (skip(); at_ < text_.size(); skip()) {
      const int line = line_;
      const std::string name = identifier();
      skip();
      if (!eat("::=")) refuse("'::=' expected after rule name '" + name + "'");
      if (rules.size() >= z(kMaxGrammarStates)) {
        refuse("more than " + std::to_string(kMaxGrammarStates) + " rules");
      }
      rules.push_back({name, choice(0), line});
    }
    return rules;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw InputError("grammar: line " + std::to_string(line_) + ": " + why);
  }
  bool eat(std::string_view s) {
    if (text_.substr(at_, s.size()) != s) return false;
    at_ += s.size();
    return true;
  }
  void skip() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        if (c == '\n') ++line_;
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::string identifier() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && word(text_[at_])) ++at_;
    if (at_ == begin) refuse("a rule name expected");
    return std::string(text_.substr(begin, at_ - begin));
  }

  Node choice(int depth) {
    if (depth > kMaxNesting) refuse("more than " + std::to_string(kMaxNesting) + " nested ( )");
    Node out{.kind = Node::Kind::kChoice, .line = line_};
    do {
      out.children.push_back(sequence(depth));
      skip();
    } while (eat("|"));
    return out;
  }

  // Up to '|', ')', the end, or the next rule.
  Node sequence(int depth) {
    Node out{.kind = Node::Kind::kSequence, .line = line_};
    for (;;) {
      skip();
      if (at_ == text_.size() || text_[at_] == '|' || text_[at_] == ')' || next_is_rule())
        return out;
      out.children.push_back(repeated(item(depth)));
    }
  }
  bool next_is_rule() {
    if (!word(text_[at_])) return false;
    const auto saved = std::pair(at_, line_);
    identifier();
    skip();
    const bool rule = text_.substr(at_, 3) == "::=";
    std::tie(at_, line_) = saved;
    return rule;
  }

  Node item(int depth) {
    const int line = line_;
    if (eat("(")) {
      Node inner = choice(depth + 1);
      if (!eat(")")) refuse("')' expected");
      return inner;
    }
    if (eat("\"")) {
      Node out{.kind = Node::Kind::kLiteral, .line = line};
      while (at_ < text_.size() && text_[at_] != '"') {
        if (text_[at_] == '\n') refuse("a literal without its closing quote");
        if (text_[at_] == '\\') {
          escaped(out.text);
        } else {
          out.text += text_[at_++];
        }
      }
      if (!eat("\"")) refuse("a literal without its closing quote");
      return out;
    }
    if (eat("[")) return char_class();
    if (eat(".")) return {.kind = Node::Kind::kClass, .ranges = complement({}), .line = line};
    if (text_[at_] == '<' || text_.substr(at_, 2) == "!<") {
      const bool other = eat("!");
      const std::size_t close = text_.find('>', at_);
      if (close == std::string_view::npos || close - at_ > 64) refuse("a token without its '>'");
      Node out{.kind = other ? Node::Kind::kOtherSpecial : Node::Kind::kSpecial, .line = line};
      out.text = std::string(text_.substr(at_, close + 1 - at_));
      at_ = close + 1;
      return out;
    }
    if (word(text_[at_])) return {.kind = Node::Kind::kRule, .text = identifier(), .line = line};
    refuse("unexpected '" + std::string(text_.substr(at_, 1)) + "'");
  }

  Node repeated(Node inner) {
    skip();
    int least = 0;
    int most = -1;
    const int line = line_;
    if (eat("+")) {
      least = 1;
    } else if (eat("?")) {
      most = 1;
    } else if (eat("{")) {
      least = count();
      most = least;
      if (eat(",")) most = text_.substr(at_, 1) == "}" ? -1 : count();
      if (!eat("}")) refuse("'}' expected");
      if (most >= 0 && most < least) refuse("{m,n} with n below m");
    } else if (!eat("*")) {
      return inner;
    }
    Node out{.kind = Node::Kind::kRepeat, .least = least, .most = most, .line = line};
    out.children.push_back(std::move(inner));
    return out;
  }
  int count() {
    int n = 0;
    const std::size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      n = n * 10 + (text_[at_] - '0');
      if (n > kMaxRepetition) refuse("a repetition above " + std::to_string(kMaxRepetition));
    }
    if (at_ == begin) refuse("a number expected");
    return n;
  }

  // After a backslash: one character (or with \x one byte) appended.
  std::uint32_t escaped(std::string& out) {
    ++at_;
    if (at_ == text_.size()) refuse("a lone backslash");
    const char c = text_[at_++];
    const auto hex = [&](int digits) {
      std::uint32_t v = 0;
      for (int i = 0; i < digits; ++i, ++at_) {
        const char d = at_ < text_.size() ? text_[at_] : '?';
        const int n = d >= '0' && d <= '9'   ? d - '0'
                      : d >= 'a' && d <= 'f' ? d - 'a' + 10
                      : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                             : -1;
        if (n < 0)
          refuse(std::string("\\") + c + " needs " + std::to_string(digits) + " hex digits");
        v = v << 4 | static_cast<std::uint32_t>(n);
      }
      return v;
    };
    std::uint32_t v = 0;
    switch (c) {
      case 'n':
        v = '\n';
        break;
      case 'r':
        v = '\r';
        break;
      case 't':
        v = '\t';
        break;
      case 'x':
        v = hex(2);
        out += static_cast<char>(v);
        return v;
      case 'u':
        v = hex(4);
        break;
      case 'U':
        v = hex(8);
        break;
      default:
        if (std::string_view("\"\\[]^-/.").find(c) == std::string_view::npos) {
          refuse(std::string("unknown escape \\") + c);
        }
        v = static_cast<unsigned char>(c);
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) refuse("an escape that is no character");
    append_utf8(v, out);
    return v;
  }

  std::uint32_t character() {
    const auto lead = static_cast<unsigned char>(text_[at_]);
    if (lead == '\\') {
      std::string ignored;
      return escaped(ignored);
    }
    const int more = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    std::uint32_t v = more == 0 ? lead : lead & (0x3FU >> static_cast<unsigned>(more));
    std::string again;
    for (int i = 1; i <= more && at_ + z(i) < text_.size(); ++i) {
      v = v << 6 | (static_cast<unsigned char>(text_[at_ + z(i)]) & 0x3FU);
    }
    if (v <= 0x10FFFF) append_utf8(v, again);
    if (text_.substr(at_, z(more) + 1) != again) refuse("a class with invalid UTF-8");
    at_ += z(more) + 1;
    return v;
  }

  Node char_class() {
    Node out{.kind = Node::Kind::kClass, .line = line_};
    const bool negated = eat("^");
    while (at_ < text_.size() && text_[at_] != ']') {
      if (text_[at_] == '\n') refuse("a class without its ']'");
      const std::uint32_t first = character();
      std::uint32_t last = first;
      if (text_.substr(at_, 1) == "-" && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = character();
      }
      if (last < first) refuse("a class with a range backwards");
      out.ranges.push_back({first, last});
    }
    if (!eat("]")) refuse("a class without its ']'");
    out.ranges = complement(std::move(out.ranges));
    if (!negated) out.ranges = complement(std::move(out.ranges));
    if (out.ranges.empty()) refuse("a class that matches nothing");
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
};

// Writes syntax trees into a builder.
class Emitter {
 public:
  Emitter(GrammarBuilder& builder, const std::map<std::string, int>& rules)
      : builder_(builder), rules_(rules) {}

  void emit(const Node& n, int from, int to) {
    switch (n.kind) {
      case Node::Kind::kChoice:
        for (const Node& c : n.children) emit(c, from, to);
        return;
      case Node::Kind::kSequence:
        if (n.children.empty()) builder_.empty(from, to);
        for (std::size_t i = 0; i < n.children.size(); ++i) {
          const int next = i + 1 == n.children.size() ? to : builder_.state();
          emit(n.children[i], from, next);
          from = next;
        }
        return;
      case Node::Kind::kRepeat:
        repeat(n, from, to);
        return;
      case Node::Kind::kLiteral:
        builder_.literal(from, n.text, to);
        return;
      case Node::Kind::kClass:
        builder_.characters(from, n.ranges, to);
        return;
      case Node::Kind::kSpecial:
        builder_.special(from, n.text, to);
        return;
      case Node::Kind::kOtherSpecial:
        builder_.any_special_but(from, {&n.text, 1}, to);
        return;
      case Node::Kind::kRule: {
        const auto it = rules_.find(n.text);
        if (it == rules_.end()) {
          throw InputError("grammar: line " + std::to_string(n.line) + ": there is no rule '" +
                           n.text + "'");
        }
        builder_.call(from, it->second, to);
      }
    }
  }

 private:
  void repeat(const Node& n, int from, int to) {
    const Node& inner = n.children[0];
    for (int i = 0; i < n.least; ++i) {
      const int next = builder_.state();
      emit(inner, from, next);
      from = next;
    }
    if (n.most < 0) {
      const int loop = builder_.state();
      builder_.empty(from, loop);
      emit(inner, loop, loop);
      builder_.empty(loop, to);
      return;
    }
    for (int i = n.least; i < n.most; ++i) {
      builder_.empty(from, to);
      const int next = builder_.state();
      emit(inner, from, next);
      from = next;
    }
    builder_.empty(from, to);
  }

  GrammarBuilder& builder_;
  const std::map<std::string, int>& rules_;
};

}  // namespace

std::vector<CharRange> complement(std::vector<CharRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const CharRange& a, const CharRange& b) {
    return a.first < b.first;
  });
  std::vector<CharRange> out;
  std::uint32_t next = 0;
  for (const CharRange& r : ranges) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = std::max(next, r.last + 1);
  }
  if (next <= 0x10FFFF) out.push_back({next, 0x10FFFF});
  return out;
}

Grammar Grammar::parse(std::string_view text) {
  if (text.size() > kMaxGrammarBytes) {
    throw InputError("grammar: " + std::to_string(text.size()) + " bytes, at most " +
                     std::to_string(kMaxGrammarBytes) + " are taken");
  }
  const auto rules = Parser(text).run();
  GrammarBuilder builder;
  std::map<std::string, int> by_name;
  for (const auto& r : rules) {
    if (!by_name.emplace(r.name, builder.rule(r.name)).second) {
      throw InputError("grammar: line " + std::to_string(r.line) + ": rule '" + r.name +
                       "' is there twice");
    }
  }
  const auto root = by_name.find("root");
  if (root == by_name.end()) throw InputError("grammar: there is no rule 'root'");
  Emitter emitter(builder, by_name);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const int rule = static_cast<int>(i);
    emitter.emit(rules[i].body, builder.start(rule), builder.end(rule));
  }
  return builder.finish(root->second);
}

// ---- builder ----

int GrammarBuilder::state() {
  if (grammar_.states() >= kMaxGrammarStates) {
    throw InputError("grammar: more than " + std::to_string(kMaxGrammarStates) + " states");
  }
  grammar_.states_.emplace_back();
  return grammar_.states() - 1;
}
int GrammarBuilder::rule(std::string name) {
  const int start = state();
  grammar_.rules_.push_back({std::move(name), start, state()});
  return rules() - 1;
}
int GrammarBuilder::start(int rule) const { return grammar_.rules_[z(rule)].start; }
int GrammarBuilder::end(int rule) const { return grammar_.rules_[z(rule)].end; }

void GrammarBuilder::edge(int from, Grammar::EdgeKind kind, int what, int to) {
  grammar_.states_[z(from)].edges.push_back({kind, what, to});
}
void GrammarBuilder::empty(int from, int to) { edge(from, Grammar::EdgeKind::kEmpty, 0, to); }
void GrammarBuilder::call(int from, int rule, int to) {
  edge(from, Grammar::EdgeKind::kCall, rule, to);
}

void GrammarBuilder::bytes(int from, const ByteSet& set, int to) {
  auto& sets = grammar_.sets_;
  const auto it = std::find(sets.begin(), sets.end(), set);
  const auto index = static_cast<int>(it - sets.begin());
  if (it == sets.end()) sets.push_back(set);
  edge(from, Grammar::EdgeKind::kBytes, index, to);
}

void GrammarBuilder::literal(int from, std::string_view text, int to) {
  if (text.empty()) empty(from, to);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int next = i + 1 == text.size() ? to : state();
    ByteSet set;
    set.set(static_cast<unsigned char>(text[i]));
    bytes(from, set, next);
    from = next;
  }
}

void GrammarBuilder::characters(int from, std::span<const CharRange> ranges, int to) {
  std::vector<CharRange> pieces;
  for (const CharRange& r : ranges) utf8_pieces(r.first, r.last, pieces);
  // Where the bytes from i on lead: pieces that end alike share their states, those that start alike share an edge.
  std::map<std::vector<ByteSet>,
           int,
           bool (*)(const std::vector<ByteSet>&, const std::vector<ByteSet>&)>
      tails([](const std::vector<ByteSet>& a, const std::vector<ByteSet>& b) {
        return std::lexicographical_compare(
            a.begin(), a.end(), b.begin(), b.end(), [](const ByteSet& x, const ByteSet& y) {
              return x.to_string() < y.to_string();
            });
      });
  std::map<int, ByteSet> leads;  // by the state they lead to
  for (const CharRange& p : pieces) {
    std::string low;
    std::string high;
    append_utf8(p.first, low);
    append_utf8(p.last, high);
    std::vector<ByteSet> sets(low.size());
    for (std::size_t i = 0; i < low.size(); ++i) {
      for (int b = static_cast<unsigned char>(low[i]); b <= static_cast<unsigned char>(high[i]);
           ++b) {
        sets[i].set(z(b));
      }
    }
    int next = to;
    for (std::size_t i = sets.size(); i-- > 1;) {
      const std::vector<ByteSet> tail(sets.begin() + static_cast<std::ptrdiff_t>(i), sets.end());
      const auto found = tails.find(tail);
      if (found != tails.end()) {
        next = found->second;
      } else {
        const int made = state();
        bytes(made, sets[i], next);
        tails.emplace(tail, made);
        next = made;
      }
    }
    leads[next] |= sets[0];
  }
  for (const auto& [next, set] : leads) bytes(from, set, next);
}

int GrammarBuilder::name(std::string_view token) {
  auto& names = grammar_.names_;
  const auto it = std::find(names.begin(), names.end(), token);
  if (it != names.end()) return static_cast<int>(it - names.begin());
  names.emplace_back(token);
  return static_cast<int>(names.size()) - 1;
}
void GrammarBuilder::special(int from, std::string_view token, int to) {
  edge(from, Grammar::EdgeKind::kSpecial, name(token), to);
}
void GrammarBuilder::any_special_but(int from, std::span<const std::string> tokens, int to) {
  std::vector<int> list;
  list.reserve(tokens.size());
  for (const std::string& t : tokens) list.push_back(name(t));
  grammar_.name_lists_.push_back(std::move(list));
  edge(from,
       Grammar::EdgeKind::kOtherSpecial,
       static_cast<int>(grammar_.name_lists_.size()) - 1,
       to);
}

// The fewest symbols from every state to the end of its rule: edges are relaxed until nothing changes.
void GrammarBuilder::measure() {
  auto& states = grammar_.states_;
  for (const auto& r : grammar_.rules_) {
    states[z(r.end)].distance = 0;
    states[z(r.end)].ends = true;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t s = states.size(); s-- > 0;) {
      auto& state = states[s];
      for (const auto& e : state.edges) {
        int d = states[z(e.to)].distance;
        if (e.kind == Grammar::EdgeKind::kCall) {
          d += states[z(grammar_.rules_[z(e.what)].start)].distance;
        } else if (e.kind != Grammar::EdgeKind::kEmpty) {
          d += 1;
        }
        if (d < state.distance) {
          state.distance = d;
          changed = true;
        }
      }
      const bool ends = !state.edges.empty() &&
                        std::all_of(state.edges.begin(), state.edges.end(), [&](const auto& e) {
                          return e.kind == Grammar::EdgeKind::kEmpty && states[z(e.to)].ends;
                        });
      if (ends && !state.ends) {
        state.ends = true;
        changed = true;
      }
    }
  }
}

// Rules that a text can come to.
std::vector<bool> GrammarBuilder::reachable() const {
  std::vector<bool> states(grammar_.states_.size());
  std::vector<bool> rules(grammar_.rules_.size());
  std::vector<int> open{start(grammar_.root_)};
  rules[z(grammar_.root_)] = true;
  while (!open.empty()) {
    const int s = open.back();
    open.pop_back();
    if (states[z(s)]) continue;
    states[z(s)] = true;
    for (const auto& e : grammar_.states_[z(s)].edges) {
      open.push_back(e.to);
      if (e.kind == Grammar::EdgeKind::kCall) {
        rules[z(e.what)] = true;
        open.push_back(start(e.what));
      }
    }
  }
  return rules;
}

void GrammarBuilder::refuse_endless(const std::vector<bool>& reached) const {
  for (std::size_t r = 0; r < reached.size(); ++r) {
    const auto& rule = grammar_.rules_[r];
    if (reached[r] && grammar_.states_[z(rule.start)].distance >= Grammar::kNever) {
      throw InputError("grammar: rule '" + rule.name + "' can never end");
    }
  }
}

// A rule that calls itself before it has read anything would be entered without end.
void GrammarBuilder::refuse_left_recursion(const std::vector<bool>& reached) const {
  const std::size_t n = grammar_.rules_.size();
  std::vector<std::vector<int>> first(n);  // rules called at a rule's very front
  for (std::size_t r = 0; r < n; ++r) {
    if (!reached[r]) continue;
    std::vector<bool> seen(grammar_.states_.size());
    std::vector<int> open{grammar_.rules_[r].start};
    while (!open.empty()) {
      const int s = open.back();
      open.pop_back();
      if (seen[z(s)]) continue;
      seen[z(s)] = true;
      for (const auto& e : grammar_.states_[z(s)].edges) {
        if (e.kind == Grammar::EdgeKind::kEmpty) open.push_back(e.to);
        if (e.kind != Grammar::EdgeKind::kCall) continue;
        first[r].push_back(e.what);
        if (grammar_.states_[z(start(e.what))].distance == 0) open.push_back(e.to);
      }
    }
  }
  // 0 new, 1 on the path, 2 done.
  std::vector<int> mark(n);
  for (std::size_t r = 0; r < n; ++r) {
    if (mark[r] != 0) continue;
    std::vector<std::pair<std::size_t, std::size_t>> path{{r, 0}};
    mark[r] = 1;
    while (!path.empty()) {
      auto& [at, next] = path.back();
      if (next == first[at].size()) {
        mark[at] = 2;
        path.pop_back();
        continue;
      }
      const std::size_t to = z(first[at][next++]);
      if (mark[to] == 1) {
        throw InputError("grammar: rule '" + grammar_.rules_[to].name +
                         "' begins with itself (left recursion)");
      }
      if (mark[to] == 0) {
        mark[to] = 1;
        path.emplace_back(to, 0);
      }
    }
  }
}

Grammar GrammarBuilder::finish(int root) {
  grammar_.root_ = root;
  measure();
  const auto reached = reachable();
  refuse_endless(reached);
  refuse_left_recursion(reached);
  // What cannot end is no way to go.
  for (auto& state : grammar_.states_) {
    std::erase_if(state.edges, [&](const auto& e) {
      return grammar_.states_[z(e.to)].distance >= Grammar::kNever;
    });
  }
  return std::move(grammar_);
}

}  // namespace assay
