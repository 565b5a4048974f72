#include "engine/grammar_schema.h"

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace assay {
namespace {

using nlohmann::json;
using CharRange = GrammarBuilder::CharRange;

constexpr const char* kQuote = "<|\"|>";
constexpr const char* kCall = "<|tool_call>";
constexpr const char* kCallEnd = "<tool_call|>";
constexpr const char* kThought = "<|channel>";
constexpr const char* kThoughtEnd = "<channel|>";
constexpr int kMaxSchemaDepth = 64;

// How values are written: JSON, or the call format with its bare keys and its own quotes.
enum class Dialect { kJson, kToolCall };

const json* member(const json& v, const char* key) {
  if (!v.is_object()) return nullptr;
  const auto it = v.find(key);
  return it == v.end() ? nullptr : &*it;
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

class Compiler {
 public:
  Compiler(
      Dialect dialect, const json& root, std::string where, bool strict, GrammarBuilder& builder)
      : dialect_(dialect), root_(root), where_(std::move(where)), strict_(strict), b_(builder) {}

  // A value that fits the schema at `path` (for messages), as a rule.
  int value(const json& schema, const std::string& path, int depth) {
    const int rule = b_.rule(path);
    fill(schema, path, b_.start(rule), b_.end(rule), depth);
    return rule;
  }
  // A call's arguments: an object, whatever else the schema would allow.
  int arguments(const json& schema) {
    const json* type = member(schema, "type");
    bool object_only =
        schema.is_object() &&
        (type == nullptr || (type->is_string() && lower(type->get<std::string>()) == "object"));
    for (const char* key : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
      object_only = object_only && !schema.contains(key);
    }
    if (!object_only) refuse("", "a schema of type object is needed");
    note_unknown(schema, "");
    const int rule = b_.rule("arguments");
    object(schema, "", b_.start(rule), b_.end(rule), 0);
    return rule;
  }
  std::vector<SchemaNote> take_notes() { return std::move(notes_); }

 private:
  [[noreturn]] void refuse(const std::string& path, const std::string& why) const {
    throw InputError(where_ + path + ": " + why);
  }
  void note(const std::string& path, const std::string& why) {
    if (strict_) refuse(path, why);
    notes_.push_back({.path = where_ + path, .text = why});
  }

  void note_unknown(const json& schema, const std::string& path) {
    for (const auto& [key, ignored] : schema.items()) {
      static const std::set<std::string> kKnown{"type",
                                                "properties",
                                                "required",
                                                "additionalProperties",
                                                "items",
                                                "minItems",
                                                "maxItems",
                                                "enum",
                                                "const",
                                                "anyOf",
                                                "oneOf",
                                                "allOf",
                                                "minLength",
                                                "maxLength",
                                                "nullable",
                                                "$ref",
                                                // these narrow nothing
                                                "$defs",
                                                "definitions",
                                                "$schema",
                                                "$id",
                                                "$comment",
                                                "title",
                                                "description",
                                                "default",
                                                "examples",
                                                "deprecated",
                                                "readOnly",
                                                "writeOnly",
                                                "strict"};
      if (!kKnown.contains(key)) note(path + "." + key, "not enforced");
    }
  }

  void fill(const json& schema, const std::string& path, int from, int to, int depth) {
    if (depth > kMaxSchemaDepth)
      refuse(path, "nested deeper than " + std::to_string(kMaxSchemaDepth));
    if (schema.is_boolean() && schema.get<bool>()) return b_.call(from, anything(), to);
    if (!schema.is_object()) refuse(path, "a schema is an object or true");
    note_unknown(schema, path);
    if (const json* nullable = member(schema, "nullable");
        nullable != nullptr && *nullable == true) {
      b_.literal(from, "null", to);
    }
    if (const json* ref = member(schema, "$ref"))
      return b_.call(from, reference(*ref, path, depth), to);
    if (const json* c = member(schema, "const")) return literal(*c, path, from, to, depth);
    if (const json* list = member(schema, "enum")) {
      if (!list->is_array() || list->empty()) refuse(path + ".enum", "a list of values is needed");
      for (const json& v : *list) literal(v, path + ".enum", from, to, depth);
      return;
    }
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      const json* list = member(schema, key);
      if (list == nullptr) continue;
      const std::string at = path + "." + key;
      if (!list->is_array() || list->empty()) refuse(at, "a list of schemas is needed");
      if (std::string_view(key) == "allOf" && list->size() > 1)
        refuse(at, "more than one is not supported");
      for (std::size_t i = 0; i < list->size(); ++i) {
        fill((*list)[i], at + "[" + std::to_string(i) + "]", from, to, depth + 1);
      }
      return;
    }
    const json* type = member(schema, "type");
    if (type == nullptr) {
      if (schema.contains("properties") || schema.contains("required"))
        return object(schema, path, from, to, depth);
      if (schema.contains("items")) return array(schema, path, from, to, depth);
      return b_.call(from, anything(), to);
    }
    if (type->is_array()) {
      if (type->empty()) refuse(path + ".type", "a list without a type");
      for (const json& t : *type) typed(t, schema, path, from, to, depth);
    } else {
      typed(*type, schema, path, from, to, depth);
    }
  }

  void typed(
      const json& type, const json& schema, const std::string& path, int from, int to, int depth) {
    if (!type.is_string()) refuse(path + ".type", "a name is needed");
    const std::string name = lower(type.get<std::string>());
    if (name == "object") return object(schema, path, from, to, depth);
    if (name == "array") return array(schema, path, from, to, depth);
    if (name == "string") return string(schema, path, from, to);
    if (name == "number") return b_.call(from, number(true), to);
    if (name == "integer") return b_.call(from, number(false), to);
    if (name == "null") return b_.literal(from, "null", to);
    if (name == "boolean") {
      b_.literal(from, "true", to);
      b_.literal(from, "false", to);
      return;
    }
    refuse(path + ".type", "unknown type '" + name.substr(0, 40) + "'");
  }

  int reference(const json& ref, const std::string& path, int depth) {
    if (!ref.is_string() || !ref.get_ref<const std::string&>().starts_with('#')) {
      refuse(path + ".$ref", "only references into the same document (#..) are followed");
    }
    const std::string to = ref.get<std::string>();
    if (const auto it = references_.find(to); it != references_.end()) return it->second;
    const json* target = nullptr;
    try {
      target = &root_.at(json::json_pointer(to.substr(1)));
    } catch (const json::exception&) {
      refuse(path + ".$ref", "'" + to.substr(0, 80) + "' is not in the schema");
    }
    const int rule = b_.rule(to);
    references_[to] = rule;  // before its body, which may refer to it
    fill(*target, to, b_.start(rule), b_.end(rule), depth + 1);
    return rule;
  }

  int bound(const json& schema, const char* key, const std::string& path, int otherwise) {
    const json* v = member(schema, key);
    if (v == nullptr) return otherwise;
    if (!v->is_number_integer() || *v < 0) refuse(path + "." + key, "a whole number is needed");
    if (*v > kMaxBoundedLength) {
      note(path + "." + key, "not enforced: above " + std::to_string(kMaxBoundedLength));
      return otherwise;
    }
    return v->get<int>();
  }

  // least to most times `one`, which adds from one state to another; most < 0: without end.
  template <class F>
  void times(int least, int most, int from, int to, const F& one) {
    for (int i = 0; i < least; ++i) {
      const int next = b_.state();
      one(from, next);
      from = next;
    }
    if (most < 0) {
      const int loop = b_.state();
      b_.empty(from, loop);
      one(loop, loop);
      b_.empty(loop, to);
      return;
    }
    for (int i = least; i < most; ++i) {
      b_.empty(from, to);
      const int next = b_.state();
      one(from, next);
      from = next;
    }
    b_.empty(from, to);
  }

  void range(int from, char first, char last, int to) {
    ByteSet set;
    for (int c = first; c <= last; ++c) set.set(static_cast<std::size_t>(c));
    b_.bytes(from, set, to);
  }

  // ---- strings ----

  void string(const json& schema, const std::string& path, int from, int to) {
    const int least = bound(schema, "minLength", path, 0);
    const int most = bound(schema, "maxLength", path, -1);
    if (most >= 0 && most < least) refuse(path + ".maxLength", "is below minLength");
    const int inside = b_.state();
    quote(from, inside);
    if (dialect_ == Dialect::kToolCall && least == 0 && most < 0)
      return b_.call(inside, call_text(), to);
    const int closing = b_.state();
    times(least, most, inside, closing, [&](int a, int z) { b_.call(a, character(), z); });
    quote(closing, to);
  }
  void quote(int from, int to) {
    if (dialect_ == Dialect::kJson) {
      b_.literal(from, "\"", to);
    } else {
      b_.special(from, kQuote, to);
    }
  }

  // One character of a string's inside.
  int character() {
    if (character_ >= 0) return character_;
    character_ = b_.rule("character");
    const int from = b_.start(character_);
    const int to = b_.end(character_);
    if (dialect_ == Dialect::kToolCall) {
      // A bounded string leaves out '<', so that it cannot spell the quote letter by letter.
      b_.characters(from, complement({{'<', '<'}}), to);
      return character_;
    }
    b_.characters(from, complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}), to);
    const int escape = b_.state();
    b_.literal(from, "\\", escape);
    ByteSet plain;
    for (const char c : std::string_view("\"\\/bfnrt")) plain.set(static_cast<std::size_t>(c));
    b_.bytes(escape, plain, to);
    // \uXXXX without surrogates: a lone one is no character.
    const int u = b_.state();
    b_.literal(escape, "u", u);
    ByteSet hex;
    for (const char c : std::string_view("0123456789abcdefABCDEF"))
      hex.set(static_cast<std::size_t>(c));
    ByteSet but_d = hex;
    but_d.reset('d').reset('D');
    ByteSet d;
    d.set('d').set('D');
    const int two = b_.state();
    const int three = b_.state();
    const int after_d = b_.state();
    const int last = b_.state();
    b_.bytes(u, but_d, two);
    b_.bytes(two, hex, three);
    b_.bytes(u, d, after_d);
    range(after_d, '0', '7', three);
    b_.bytes(three, hex, last);
    b_.bytes(last, hex, to);
    return character_;
  }

  // The rest of a string in a call, with its closing quote. The quote is a token of its own; its five letters must not
  // come one by one either, because whoever reads the text back ends the string there.
  int call_text() {
    if (call_text_ >= 0) return call_text_;
    call_text_ = b_.rule("text");
    constexpr std::string_view kLetters = "<|\"|>";
    std::vector<int> seen{b_.start(call_text_)};  // how many of the letters stand at the end
    for (std::size_t i = 1; i < kLetters.size(); ++i) seen.push_back(b_.state());
    for (std::size_t i = 0; i < kLetters.size(); ++i) {
      const auto letter = static_cast<std::uint32_t>(static_cast<unsigned char>(kLetters[i]));
      std::vector<CharRange> out{{letter, letter}};
      if (i > 0) {
        out.push_back({'<', '<'});
        b_.literal(seen[i], "<", seen[1]);
      }
      if (i + 1 < kLetters.size()) b_.literal(seen[i], kLetters.substr(i, 1), seen[i + 1]);
      b_.characters(seen[i], complement(out), seen[0]);
      b_.special(seen[i], kQuote, b_.end(call_text_));
    }
    return call_text_;
  }

  // ---- numbers: at most 15 digits and 16 after the point, so that every one of them is a finite double ----

  int number(bool fraction) {
    int& rule = fraction ? number_ : integer_;
    if (rule >= 0) return rule;
    rule = b_.rule(fraction ? "number" : "integer");
    const int from = b_.start(rule);
    const int to = b_.end(rule);
    const int unsigned_part = b_.state();
    const int whole = b_.state();
    b_.empty(from, unsigned_part);
    b_.literal(from, "-", unsigned_part);
    b_.literal(unsigned_part, "0", whole);
    const int more = b_.state();
    range(unsigned_part, '1', '9', more);
    const auto digit = [&](int a, int z) { range(a, '0', '9', z); };
    times(0, 14, more, whole, digit);
    b_.empty(whole, to);
    if (!fraction) return rule;
    const int point = b_.state();
    const int power = b_.state();
    b_.literal(whole, ".", point);
    times(1, 16, point, power, digit);
    b_.empty(power, to);
    const int sign = b_.state();
    ByteSet e;
    e.set('e').set('E');
    b_.bytes(whole, e, sign);
    b_.bytes(power, e, sign);
    const int exponent = b_.state();
    b_.empty(sign, exponent);
    b_.literal(sign, "-", exponent);
    b_.literal(sign, "+", exponent);
    times(1, 2, exponent, to, digit);
    return rule;
  }

  // ---- lists and objects ----

  // White space between the parts of a JSON text: bounded, so that a reply cannot consist of it.
  void space(int from, int to) {
    if (dialect_ == Dialect::kToolCall) return b_.empty(from, to);
    if (space_ < 0) {
      space_ = b_.rule("space");
      const int line = b_.state();
      b_.empty(b_.start(space_), b_.end(space_));
      b_.literal(b_.start(space_), " ", b_.end(space_));
      b_.literal(b_.start(space_), "\n", line);
      times(0, 16, line, b_.end(space_), [&](int a, int z) { b_.literal(a, " ", z); });
    }
    b_.call(from, space_, to);
  }
  void mark(int from, std::string_view text, int to) {
    const int next = b_.state();
    b_.literal(from, text, next);
    space(next, to);
  }

  void array(const json& schema, const std::string& path, int from, int to, int depth) {
    const json* items = member(schema, "items");
    const int least = bound(schema, "minItems", path, 0);
    const int most = bound(schema, "maxItems", path, -1);
    if (most >= 0 && most < least) refuse(path + ".maxItems", "is below minItems");
    const int item = items == nullptr ? anything() : value(*items, path + ".items", depth + 1);
    list(item, least, most, from, to);
  }
  void list(int item, int least, int most, int from, int to) {
    const int inside = b_.state();
    const int closing = b_.state();
    mark(from, "[", inside);
    if (least == 0) b_.empty(inside, closing);
    if (most != 0) {
      const int first = b_.state();
      b_.call(inside, item, first);
      times(std::max(least - 1, 0), most < 0 ? -1 : most - 1, first, closing, [&](int a, int z) {
        const int next = b_.state();
        mark(a, ",", next);
        b_.call(next, item, z);
      });
    }
    const int end = b_.state();
    space(closing, end);
    b_.literal(end, "]", to);
  }

  void object(const json& schema, const std::string& path, int from, int to, int depth) {
    const json* properties = member(schema, "properties");
    const json* additional = member(schema, "additionalProperties");
    if (properties != nullptr && !properties->is_object())
      refuse(path + ".properties", "an object is needed");
    std::set<std::string> required;
    if (const json* list = member(schema, "required")) {
      if (!list->is_array()) refuse(path + ".required", "a list is needed");
      for (const json& name : *list) {
        if (!name.is_string()) refuse(path + ".required", "a list of names is needed");
        required.insert(name.get<std::string>());
      }
    }
    if (properties == nullptr || properties->empty()) {
      if (!required.empty()) refuse(path + ".required", "names properties that are not described");
      if (additional != nullptr && *additional == false) {
        return b_.literal(from, "{}", to);
      }
      return b_.call(from, any_object(), to);
    }
    if (additional != nullptr && !additional->is_boolean()) {
      note(path + ".additionalProperties",
           "not offered: only the described properties are written");
    }
    std::vector<std::pair<std::string, const json*>> members;
    for (const auto& [key, v] : properties->items()) members.emplace_back(key, &v);
    if (dialect_ ==
        Dialect::
            kToolCall) {  // the template's order, so that a rendered history has the same bytes
      std::stable_sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
        return lower(a.first) < lower(b.first);
      });
    }
    for (const std::string& name : required) {
      if (!properties->contains(name))
        refuse(path + ".required", "'" + name.substr(0, 80) + "' is not described");
    }
    const int inside = b_.state();
    mark(from, "{", inside);
    // Two tracks: nothing written so far, something written so far.
    int none = inside;
    int some = -1;
    for (const auto& [key, v] : members) {
      const int rule = value(*v, path + ".properties." + key, depth + 1);
      const int named = b_.state();
      const int written = b_.state();
      if (none >= 0) this->key(none, key, path, named);
      if (some >= 0) {
        const int next = b_.state();
        mark(some, ",", next);
        this->key(next, key, path, named);
      }
      b_.call(named, rule, written);
      if (required.contains(key)) {
        none = -1;
      } else if (some >= 0) {
        b_.empty(some, written);
      }
      some = written;
    }
    const int closing = b_.state();
    b_.empty(some, closing);
    if (none >= 0) b_.empty(none, closing);
    const int end = b_.state();
    space(closing, end);
    b_.literal(end, "}", to);
  }

  void key(int from, const std::string& name, const std::string& path, int to) {
    const int after = b_.state();
    if (dialect_ == Dialect::kJson) {
      b_.literal(from, json(name).dump(), after);
      const int colon = b_.state();
      space(after, colon);
      mark(colon, ":", to);
      return;
    }
    if (name.empty() || name.find_first_of(":{}[],<|\"") != std::string::npos) {
      refuse(path + ".properties",
             "'" + name.substr(0, 80) + "' is a name that a call cannot carry");
    }
    b_.literal(from, name, after);
    mark(after, ":", to);
  }

  int any_object() {
    if (any_object_ >= 0) return any_object_;
    any_object_ = b_.rule("object");
    const int inside = b_.state();
    const int closing = b_.state();
    const int end = b_.state();
    mark(b_.start(any_object_), "{", inside);
    b_.empty(inside, closing);
    const auto entry = [&](int a, int z) {
      const int named = b_.state();
      if (dialect_ == Dialect::kJson) {
        const int quoted = b_.state();
        const int colon = b_.state();
        string(json::object(), "", a, quoted);
        space(quoted, colon);
        mark(colon, ":", named);
      } else {
        const int name = b_.state();
        const std::vector<CharRange> word{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
        times(1, 64, a, name, [&](int from, int to) { b_.characters(from, word, to); });
        mark(name, ":", named);
      }
      b_.call(named, anything(), z);
    };
    const int first = b_.state();
    entry(inside, first);
    times(0, -1, first, closing, [&](int a, int z) {
      const int next = b_.state();
      mark(a, ",", next);
      entry(next, z);
    });
    space(closing, end);
    b_.literal(end, "}", b_.end(any_object_));
    return any_object_;
  }

  int anything() {
    if (anything_ >= 0) return anything_;
    anything_ = b_.rule("value");
    const int from = b_.start(anything_);
    const int to = b_.end(anything_);
    for (const char* word : {"null", "true", "false"}) b_.literal(from, word, to);
    b_.call(from, number(true), to);
    string(json::object(), "", from, to);
    list(anything_, 0, -1, from, to);
    b_.call(from, any_object(), to);
    return anything_;
  }

  // A constant as the dialect writes it.
  void literal(const json& v, const std::string& path, int from, int to, int depth) {
    if (depth > kMaxSchemaDepth)
      refuse(path, "nested deeper than " + std::to_string(kMaxSchemaDepth));
    if (dialect_ == Dialect::kJson) {
      return b_.literal(from, v.dump(-1, ' ', false, json::error_handler_t::replace), to);
    }
    if (v.is_structured())
      refuse(path, "a list or object as a constant is not supported in a call");
    if (!v.is_string()) return b_.literal(from, v.dump(), to);
    const std::string& text = v.get_ref<const std::string&>();
    if (text.find(kQuote) != std::string::npos)
      refuse(path, "a constant that contains the quote token");
    const int inside = b_.state();
    const int closing = b_.state();
    quote(from, inside);
    b_.literal(inside, text, closing);
    quote(closing, to);
  }

  Dialect dialect_;
  const json& root_;
  std::string where_;
  bool strict_;
  GrammarBuilder& b_;
  std::vector<SchemaNote> notes_;
  std::map<std::string, int> references_;
  int anything_ = -1;
  int any_object_ = -1;
  int number_ = -1;
  int integer_ = -1;
  int character_ = -1;
  int call_text_ = -1;
  int space_ = -1;
};

// Any bytes and any special token but those named, over and over.
void free_text(GrammarBuilder& b, int from, const std::vector<std::string>& but, int to) {
  const int loop = b.state();
  b.empty(from, loop);
  b.bytes(loop, ByteSet().set(), loop);
  b.any_special_but(loop, but, loop);
  b.empty(loop, to);
}

void thought(GrammarBuilder& b, int from, int to) {
  const int inside = b.state();
  const int close = b.state();
  b.special(from, kThought, inside);
  free_text(b, inside, {kCall, kCallEnd, kThought, kThoughtEnd}, close);
  b.special(close, kThoughtEnd, to);
}

bool callable(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

}  // namespace

Grammar json_grammar(const json& schema) {
  GrammarBuilder builder;
  Compiler compiler(Dialect::kJson, schema, "schema", true, builder);
  const int root = compiler.value(schema, "", 0);
  return builder.finish(root);
}

Grammar allow_thought(Grammar grammar) {
  GrammarBuilder b(std::move(grammar));
  const int was = b.root();
  const int root = b.rule("reply");
  const int from = b.start(root);
  const int answer = b.state();
  b.empty(from, answer);
  thought(b, from, answer);
  b.call(answer, was, b.end(root));
  return b.finish(root);
}

SchemaGrammar tool_grammar(const json& tools, const ToolGrammarOptions& options) {
  if (!tools.is_array()) throw InputError("tools: a list is needed");
  GrammarBuilder b;
  const int call = b.rule("call");
  std::vector<SchemaNote> notes;
  std::set<std::string> names;
  const int begun = b.state();
  const int closing = b.state();
  const int head = b.state();
  b.special(b.start(call), kCall, head);
  b.literal(head, "call:", begun);
  b.special(closing, kCallEnd, b.end(call));
  static const json kNoParameters =
      json::object({{"type", "object"}, {"additionalProperties", false}});
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "].function";
    const json* f = member(tools[i], "function");
    const json* name = f == nullptr ? nullptr : member(*f, "name");
    if (name == nullptr || !name->is_string()) throw InputError(where + ".name: is missing");
    const std::string& text = name->get_ref<const std::string&>();
    if (!callable(text))
      throw InputError(where + ".name: 1 to 64 letters, digits, '_', '-', '.' are needed");
    if (!names.insert(text).second)
      throw InputError(where + ".name: '" + text + "' is there twice");
    if (!options.only.empty() && options.only != text) continue;
    const json* parameters = member(*f, "parameters");
    if (parameters == nullptr || parameters->is_null() || parameters->empty())
      parameters = &kNoParameters;
    Compiler compiler(Dialect::kToolCall, *parameters, where + ".parameters", false, b);
    const int arguments = compiler.arguments(*parameters);
    const int named = b.state();
    b.literal(begun, text, named);
    b.call(named, arguments, closing);
    for (SchemaNote& note : compiler.take_notes()) {
      note.tool = i;
      notes.push_back(std::move(note));
    }
  }
  if (!options.only.empty() && !names.contains(options.only)) {
    throw InputError("tool_choice: there is no tool '" + options.only.substr(0, 80) + "'");
  }
  if (options.use == ToolUse::kRequired && names.empty()) {
    throw InputError("tool_choice: a call is required but no tool is given");
  }

  const int root = b.rule("reply");
  const int from = b.start(root);
  const int to = b.end(root);
  if (options.use == ToolUse::kNone || names.empty()) {
    free_text(b, from, {kCall, kCallEnd}, to);
  } else {
    const int calls = b.state();
    if (options.use == ToolUse::kAuto) {
      const int text = b.state();
      free_text(b, from, {kCall, kCallEnd}, text);
      b.empty(text, to);
      b.empty(text, calls);
    } else {
      b.empty(from, calls);
      thought(b, from, calls);
    }
    b.call(calls, call, to);
    if (options.parallel) {
      const int again = b.state();
      b.call(calls, call, again);
      b.empty(again, calls);
    }
  }
  return {b.finish(root), std::move(notes)};
}

}  // namespace assay
