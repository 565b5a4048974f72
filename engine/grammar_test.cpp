// Grammars: what is refused and how it is said, what a compiled grammar lets through, and that masked random choices
// always end in a text that the grammar's own readers accept.
#include "engine/grammar.h"

#include <chrono>

#include "gtest/gtest.h"
#include <nlohmann/json.hpp>

#include "engine/grammar_schema.h"
#include "engine/tool_call.h"
#include "kernels/base/error.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

using nlohmann::json;

const Tokenizer& tokenizer() {
  static const Tokenizer t =
      Tokenizer::load(GgufFile::open(ASSAY_SOURCE_DIR "/engine/models/tiny-gemma4-moe-q4_0.gguf"));
  return t;
}
std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const auto v = std::make_shared<const GrammarVocabulary>(tokenizer());
  return v;
}
GrammarMatcher matcher(Grammar grammar) {
  return {std::make_shared<const Grammar>(std::move(grammar)), vocabulary()};
}

// Feeds the text token by token, every token checked against the mask: does the grammar let it through whole?
bool accepts(const Grammar& grammar, std::string_view text) {
  GrammarMatcher m = matcher(grammar);
  for (const TokenId id : tokenizer().encode(text, false, SpecialMode::kAll)) {
    const bool allowed = m.mask(1 << 20).allows(id);
    const bool taken = m.accept(id);
    EXPECT_EQ(allowed, taken) << "mask and accept disagree at token " << id << " of " << text;
    if (!taken) return false;
  }
  EXPECT_EQ(m.may_end(), m.mask(1 << 20).allows(tokenizer().turn_end()));
  return m.may_end();
}
bool accepts(std::string_view rules, std::string_view text) {
  return accepts(Grammar::parse(rules), text);
}

std::string refusal(const std::string& rules) {
  try {
    (void)Grammar::parse(rules);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(GrammarRules, SayWhatIsWrongAndWhere) {
  std::string many = "root ::= r1\n";
  for (int i = 0; i < 10000; ++i) many += "r" + std::to_string(i) + "::=\"\"\n";
  const struct {
    std::string rules;
    const char* says;
  } cases[] = {
      {"", "no rule 'root'"},
      {"   # nothing\n", "no rule 'root'"},
      {"a ::= \"x\"", "no rule 'root'"},
      {"root ::= root \"x\" | \"y\"", "left recursion"},
      {"root ::= a\na ::= b? c\nc ::= a \"x\" | \"y\"\nb ::= \"b\"", "left recursion"},
      {"root ::= \"\" root | \"x\"", "left recursion"},
      {"root ::= \"x\" root", "rule 'root' can never end"},
      {"root ::= a\na ::= \"(\" a \")\"", "can never end"},
      {"root ::= missing", "line 1: there is no rule 'missing'"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2: rule 'root' is there twice"},
      {"root ::= \"a", "without its closing quote"},
      {"root ::= \"a\\q\"", "unknown escape"},
      {"root ::= \"\\uD800\"", "no character"},
      {"root ::= \"\\x4\"", "hex digits"},
      {"root ::= [a-", "without its ']'"},
      {"root ::= [z-a]", "backwards"},
      {"root ::= []", "matches nothing"},
      {"root ::= [\xFF]", "invalid UTF-8"},
      {"root ::= (\"a\"", "')' expected"},
      {"root ::= \"a\"{3,1}", "n below m"},
      {"root ::= \"a\"{99999999999}", "repetition above"},
      {"root ::= <|turn", "without its '>'"},
      {"root = \"a\"", "'::=' expected"},
      {"root ::= \"a\" )", "rule name expected"},
      {"root ::= %", "unexpected '%'"},
      {"root ::= " + std::string(100, '(') + "\"a\"" + std::string(100, ')'), "nested"},
      {"root ::= ((((\"a\"{100}){100}){100}){100}){100}", "4096 states"},
      {many, "bytes, at most 65536"},
      {many.substr(0, 60000), "more than 4096"},
      {std::string(10 << 20, 'a'), "bytes, at most 65536"},
  };
  for (const auto& c : cases) {
    const auto start = std::chrono::steady_clock::now();
    const std::string said = refusal(c.rules);
    EXPECT_NE(said.find(c.says), std::string::npos) << c.rules.substr(0, 60) << " said: " << said;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2))
        << c.rules.substr(0, 60);
  }
}

TEST(GrammarRules, LetThroughWhatTheyDescribe) {
  EXPECT_TRUE(accepts("root ::= \"yes\" | \"no\"", "yes"));
  EXPECT_FALSE(accepts("root ::= \"yes\" | \"no\"", "yesno"));
  EXPECT_FALSE(accepts("root ::= \"yes\" | \"no\"", "ye"));
  EXPECT_TRUE(accepts("root ::= [a-z]+ (\",\" [^,\\n]{1,3})* # list", "ab,c d,\xE2\x82\xAC"));
  EXPECT_FALSE(accepts("root ::= [a-z]+ (\",\" [^,\\n]{1,3})*", "ab,cdef"));
  EXPECT_TRUE(accepts("root ::= .", "\xF0\x9F\x99\x82"));
  EXPECT_FALSE(accepts("root ::= .", "\xF0\x9F\x99"));
  EXPECT_FALSE(accepts("root ::= [^a]", "\xED\xA0\x80"));  // a surrogate is no character
  EXPECT_TRUE(accepts("root ::= \"\\x41\\u20AC\\n\"", "A\xE2\x82\xAC\n"));
  EXPECT_TRUE(accepts("root ::= a\n  | b\na ::=\n \"x\" b\nb ::= \"\" | \"b\" b", "xbbb"));
  // Nesting to any depth the limit allows, and not beyond.
  const std::string nested = "root ::= \"(\" root \")\" | \"x\"";
  EXPECT_TRUE(accepts(nested, std::string(100, '(') + "x" + std::string(100, ')')));
  EXPECT_FALSE(accepts(nested, std::string(300, '(') + "x" + std::string(300, ')')));
  // Calls at a rule's end are no nesting.
  EXPECT_TRUE(accepts("root ::= \"x\" root | \"y\"", std::string(500, 'x') + "y"));
}

TEST(GrammarRules, SpecialTokensAreNotTheirLetters) {
  const char* rules = "root ::= <|tool_call> \"x\" !<|tool_call>*";
  EXPECT_TRUE(accepts(rules, "<|tool_call>x<channel|>"));
  EXPECT_FALSE(accepts(rules, "<|tool_call>x<|tool_call>"));
  GrammarMatcher m = matcher(Grammar::parse(rules));
  EXPECT_FALSE(m.accept(tokenizer().encode("<", false, SpecialMode::kNone).at(0)));
  EXPECT_THROW(matcher(Grammar::parse("root ::= <|nothing|>")), InputError);
}

TEST(GrammarMask, LeavesOutTokensThatFitOnlyInPart) {
  GrammarMatcher m = matcher(Grammar::parse("root ::= \"th\" [0-9]"));
  const TokenMask& mask = m.mask(100);
  int allowed = 0;
  for (TokenId id = 0; id < tokenizer().vocab_size(); ++id) {
    if (!mask.allows(id)) continue;
    ++allowed;
    const std::string bytes = tokenizer().token_bytes(id);
    EXPECT_TRUE(bytes == "t" || bytes == "th") << bytes;  // never "the"
  }
  EXPECT_GE(allowed, 2);
}

// The vocabulary's masks are what trying every token gives.
TEST(GrammarMask, AgreesWithTryingEveryToken) {
  const Grammar g = json_grammar(json::parse(
      R"({"type":"object","properties":{"a":{"type":"string","maxLength":5},"b":{"enum":[1,"two"]}},"required":["a"]})"));
  for (const char* text :
       {"", "{", "{\"a\":\"x\\", "{\"a\": \"\xE2", "{\"a\":\"abcde\",", "{\"a\":\"\"}"}) {
    GrammarMatcher m = matcher(g);
    for (const char c : std::string_view(text)) {
      const auto id = tokenizer().find([&] {
        char name[8];
        std::snprintf(
            name, sizeof name, "<0x%02X>", static_cast<unsigned>(static_cast<unsigned char>(c)));
        return std::string(name);
      }());
      ASSERT_TRUE(id && m.accept(*id)) << text;
    }
    const TokenMask all = m.mask(1 << 20);
    const TokenMask tight = m.mask(m.distance() + 1);
    const auto before = tokenizer().encode(text, false, SpecialMode::kNone);
    for (TokenId id = 0; id < tokenizer().vocab_size(); ++id) {
      if (tokenizer().is_stop(id)) continue;
      GrammarMatcher fresh = matcher(g);
      for (const TokenId b : before) ASSERT_TRUE(fresh.accept(b));
      const bool taken = fresh.accept(id);
      ASSERT_EQ(taken, all.allows(id)) << text << " then " << tokenizer().token_text(id);
      // With a budget: only what can still be finished in it.
      ASSERT_EQ(taken && fresh.distance() <= m.distance(), tight.allows(id))
          << text << " then " << tokenizer().token_text(id);
    }
  }
}

TEST(GrammarMask, SaysWhenNothingFits) {
  // The depth limit: no "(" any more, but the way out stays open.
  GrammarMatcher m = matcher(Grammar::parse("root ::= \"(\" root \")\" | \"x\""));
  const TokenId open = tokenizer().encode("(", false, SpecialMode::kNone).at(0);
  int depth = 0;
  while (m.accept(open)) ++depth;
  EXPECT_EQ(depth, kMaxGrammarDepth);
  EXPECT_FALSE(m.mask(1 << 20).none());
  // Nothing but calls beyond the limit: a dead end, at once.
  std::string deep = "root ::= r0\n";
  for (int i = 0; i < 200; ++i) {
    deep += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"x\"\n";
  }
  EXPECT_TRUE(matcher(Grammar::parse(deep + "r200 ::= \"y\"")).mask(1 << 20).none());
}

TEST(GrammarMask, RefusesEndlessAmbiguity) {
  GrammarMatcher m =
      matcher(Grammar::parse("root ::= \"x\" root \"y\" | \"x\" root \"z\" | \"x\""));
  const TokenId x = tokenizer().encode("x", false, SpecialMode::kNone).at(0);
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) m.accept(x);
      },
      InputError);
}

// Random choice among what the mask allows.
std::string adversarial(GrammarMatcher m, int budget, Rng& rng, bool longest) {
  std::string text;
  for (int left = budget; left > 0; --left) {
    const TokenMask& mask = m.mask(left);
    EXPECT_FALSE(mask.none());
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < tokenizer().vocab_size(); ++id) {
      if (mask.allows(id)) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    TokenId id = allowed[rng.below(allowed.size())];
    if (longest) {  // as the worst of models: never end what can go on
      for (const TokenId other : allowed) {
        if (tokenizer().is_stop(id) || tokenizer().token_type(id) != TokenType::kNormal) id = other;
      }
    }
    if (tokenizer().is_stop(id)) return text;
    EXPECT_TRUE(m.accept(id));
    text += tokenizer().token_bytes(id, true);
  }
  EXPECT_TRUE(m.may_end()) << "cut off: " << text;
  return text;
}

const char* const kTools = R"([
 {"type":"function","function":{"name":"tide_height","description":"d","parameters":{"type":"object",
  "properties":{"port":{"type":"string","enum":["Brest","Saint \"Malo\""]},"hours":{"type":"integer"},
   "Note":{"type":"string"},"depths":{"type":"array","items":{"type":"number"},"maxItems":3},
   "where":{"type":"object","properties":{"lat":{"type":"number"},"lon":{"type":"number"}},"required":["lat","lon"]}},
  "required":["port","where"]}}},
 {"type":"function","function":{"name":"free","parameters":{"type":"object"}}},
 {"type":"function","function":{"name":"none"}}])";

TEST(ToolGrammar, AdversarialChoicesAreStillCalls) {
  Rng rng(7);
  const auto required = tool_grammar(json::parse(kTools), {.use = ToolUse::kRequired});
  EXPECT_TRUE(required.notes.empty());
  const Grammar one =
      tool_grammar(json::parse(kTools),
                   {.use = ToolUse::kRequired, .only = "tide_height", .parallel = false})
          .grammar;
  for (int i = 0; i < 60; ++i) {
    const bool longest = i % 3 == 0;
    const auto many = parse_reply(adversarial(matcher(required.grammar), 150, rng, longest));
    EXPECT_EQ(many.error, "");
    EXPECT_FALSE(many.tool_calls.empty());
    const std::string text = adversarial(matcher(one), 120, rng, longest);
    const auto reply = parse_reply(text);
    ASSERT_EQ(reply.error, "") << text;
    ASSERT_EQ(reply.tool_calls.size(), 1U) << text;
    EXPECT_EQ(reply.tool_calls[0].name, "tide_height");
    const json& a = reply.tool_calls[0].arguments;
    ASSERT_TRUE(a.contains("port") && a.contains("where")) << text;
    EXPECT_TRUE(a["port"] == "Brest" || a["port"] == "Saint \"Malo\"") << text;
    EXPECT_TRUE(a["where"]["lat"].is_number() && a["where"]["lon"].is_number()) << text;
    for (const auto& [key, v] : a.items()) {
      EXPECT_TRUE(key == "port" || key == "hours" || key == "Note" || key == "depths" ||
                  key == "where")
          << text;
    }
    EXPECT_TRUE(a.value("hours", json(0)).is_number_integer()) << text;
    EXPECT_LE(a.value("depths", json::array()).size(), 3U) << text;
  }
}

TEST(ToolGrammar, TextComesFirstUnlessACallIsRequired) {
  const json tools = json::parse(kTools);
  const Grammar automatic = tool_grammar(tools, {}).grammar;
  EXPECT_TRUE(accepts(automatic, "Just text with { and <."));
  EXPECT_TRUE(
      accepts(automatic, "<|channel>thought\nhm<channel|>ok<|tool_call>call:none{}<tool_call|>"));
  EXPECT_TRUE(accepts(
      automatic,
      "<|tool_call>call:none{}<tool_call|><|tool_call>call:free{a:[{b:null}]}<tool_call|>"));
  EXPECT_FALSE(accepts(automatic, "<|tool_call>call:other{}<tool_call|>"));
  EXPECT_FALSE(accepts(automatic, "<|tool_call>call:none{}<tool_call|> and more"));
  const Grammar none = tool_grammar(tools, {.use = ToolUse::kNone}).grammar;
  EXPECT_TRUE(accepts(none, "text"));
  EXPECT_FALSE(accepts(none, "<|tool_call>call:none{}<tool_call|>"));
  const Grammar required =
      tool_grammar(tools, {.use = ToolUse::kRequired, .parallel = false}).grammar;
  EXPECT_FALSE(accepts(required, ""));
  EXPECT_FALSE(accepts(required, "text"));
  EXPECT_TRUE(
      accepts(required, "<|channel>thought\nhm<channel|><|tool_call>call:none{}<tool_call|>"));
  EXPECT_FALSE(
      accepts(required, "<|tool_call>call:none{}<tool_call|><|tool_call>call:none{}<tool_call|>"));
  // The quote's letters one by one would end the string for whoever reads it back.
  GrammarMatcher m =
      matcher(tool_grammar(tools, {.use = ToolUse::kRequired, .only = "free"}).grammar);
  for (const TokenId id :
       tokenizer().encode("<|tool_call>call:free{a:<|\"|>", false, SpecialMode::kAll)) {
    ASSERT_TRUE(m.accept(id));
  }
  for (const char c : std::string_view("<|\"|")) {
    char name[8];
    std::snprintf(
        name, sizeof name, "<0x%02X>", static_cast<unsigned>(static_cast<unsigned char>(c)));
    ASSERT_TRUE(m.accept(*tokenizer().find(name)));
  }
  EXPECT_FALSE(m.accept(*tokenizer().find("<0x3E>")));
}

TEST(ToolGrammar, RefusesWhatACallCannotCarryAndNotesWhatItDoesNotEnforce) {
  const auto refused = [](const char* tools, const ToolGrammarOptions& options) -> std::string {
    try {
      (void)tool_grammar(json::parse(tools), options);
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refused(R"([{"function":{}}])", {}).find("tools[0].function.name"), std::string::npos);
  EXPECT_NE(refused(R"([{"function":{"name":"a{"}}])", {}).find("letters"), std::string::npos);
  EXPECT_NE(refused(R"([{"function":{"name":"a"}},{"function":{"name":"a"}}])", {}).find("twice"),
            std::string::npos);
  EXPECT_NE(refused(R"([{"function":{"name":"a"}}])", {.only = "b"}).find("tool_choice"),
            std::string::npos);
  EXPECT_NE(refused("[]", {.use = ToolUse::kRequired}).find("tool_choice"), std::string::npos);
  EXPECT_NE(refused(R"([{"function":{"name":"a","parameters":{"properties":{"x:y":{}}}}}])", {})
                .find("cannot carry"),
            std::string::npos);
  for (const char* parameters : {R"({"type":"integer"})",
                                 "true",
                                 "[1]",
                                 R"({"anyOf":[{"type":"object"}]})",
                                 R"({"type":["object"]})"}) {
    EXPECT_NE(
        refused(("[{\"function\":{\"name\":\"a\",\"parameters\":" + std::string(parameters) + "}}]")
                    .c_str(),
                {})
            .find("tools[0].function.parameters: a schema of type object"),
        std::string::npos)
        << parameters;
  }
  const auto noted = tool_grammar(
      json::parse(
          R"([{"function":{"name":"b"}},{"function":{"name":"a","parameters":{"properties":{"x":{"type":"string","pattern":"^a$"}}}}}])"),
      {});
  ASSERT_EQ(noted.notes.size(), 1U);
  EXPECT_EQ(noted.notes[0].tool, 1U);
  EXPECT_EQ(noted.notes[0].path, "tools[1].function.parameters.properties.x.pattern");
  EXPECT_EQ(noted.notes[0].text, "not enforced");
}

TEST(JsonGrammar, HoldsRepliesToTheSchema) {
  const Grammar g = json_grammar(json::parse(R"({"type":"object","properties":{
      "name":{"type":"string"},"tree":{"$ref":"#/$defs/tree"},"n":{"type":["integer","null"]}},
      "required":["name"],"$defs":{"tree":{"type":"object","properties":{
      "left":{"$ref":"#/$defs/tree"},"v":{"type":"number"}},"required":["v"]}}})"));
  EXPECT_TRUE(accepts(g, R"({"name":"a\"\u00e9"})"));
  EXPECT_TRUE(accepts(g, R"({"n": null, "name": "x", "tree": {"left": {"v": 1.5e3}, "v": -0}})"));
  EXPECT_FALSE(accepts(g, R"({"n": 1.5, "name": "x"})"));
  EXPECT_FALSE(accepts(g, R"({"tree": {"v": 1}})"));
  EXPECT_FALSE(accepts(g, R"({"name": "x", "other": 1})"));
  EXPECT_FALSE(accepts(g, "{\"name\": \"a\nb\"}"));
  Rng rng(3);
  for (int i = 0; i < 30; ++i) {
    const std::string text = adversarial(matcher(g), 100, rng, i % 3 == 0);
    const json v = json::parse(text, nullptr, false);
    ASSERT_TRUE(v.is_object() && v.contains("name")) << text;
  }
  for (int i = 0; i < 10; ++i) {
    const std::string text =
        adversarial(matcher(json_grammar(json::object({{"type", "object"}}))), 60, rng, false);
    EXPECT_TRUE(json::parse(text, nullptr, false).is_object()) << text;
  }
}

TEST(JsonGrammar, RefusesWhatItCannotEnforceByItsPath) {
  const auto refused = [](const json& schema) -> std::string {
    try {
      (void)json_grammar(schema);
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refused(json::parse(R"({"properties":{"a":{"pattern":"x"}}})"))
                .find("schema.properties.a.pattern"),
            std::string::npos);
  EXPECT_NE(refused(json::parse(R"({"type":"strin"})")).find("unknown type 'strin'"),
            std::string::npos);
  EXPECT_NE(refused(json::parse(R"({"$ref":"http://x"})")).find("same document"),
            std::string::npos);
  EXPECT_NE(refused(json::parse(R"({"$ref":"#/nowhere"})")).find("not in the schema"),
            std::string::npos);
  EXPECT_NE(refused(json::parse(R"({"$ref":"#"})")).find("can never end"), std::string::npos);
  EXPECT_NE(refused(json::parse(R"({"enum":[]})")).find("list of values"), std::string::npos);
  EXPECT_NE(refused(json::parse(R"({"required":["a"]})")).find("not described"), std::string::npos);
  json deep = json::object({{"type", "string"}});
  for (int i = 0; i < 100; ++i) deep = json::object({{"type", "array"}, {"items", deep}});
  EXPECT_NE(refused(deep).find("nested deeper"), std::string::npos);
  json wide = json::object({{"type", "object"}});
  for (int i = 0; i < 3000; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}};
  EXPECT_NE(refused(wide).find("4096 states"), std::string::npos);
}

}  // namespace
}  // namespace assay
