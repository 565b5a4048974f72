// Fuzz target: any bytes as rules, as a JSON schema or as tool declarations (the first byte says which). What compiles is
// walked at random: mask and accept agree, a walk with a budget ends where the grammar ends, and calls can be read back.
#include <memory>

#include <nlohmann/json.hpp>

#include "engine/fuzz/spec_tokenizer.h"
#include "engine/grammar.h"
#include "engine/grammar_schema.h"
#include "engine/tool_call.h"
#include "kernels/base/error.h"
#include "kernels/base/rng.h"

using assay::check;
using assay::TokenId;

namespace {

constexpr int kSteps = 12;

std::shared_ptr<const assay::GrammarVocabulary> vocabulary() {
  static const auto v = std::make_shared<const assay::GrammarVocabulary>(assay::spec_tokenizer());
  return v;
}

assay::Grammar compile(int kind, std::string_view text) {
  if (kind == 0) return assay::Grammar::parse(text);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) throw assay::InputError("no JSON");
  if (kind == 1) return assay::json_grammar(json);
  return assay::tool_grammar(json, {.use = assay::ToolUse::kRequired, .parallel = false}).grammar;
}

// Gives the text when the walk came to the grammar's end.
std::string walk(assay::GrammarMatcher& m, int budget, assay::Rng& rng, bool& ended) {
  const assay::Tokenizer& t = assay::spec_tokenizer();
  std::string text;
  std::vector<TokenId> allowed;
  ended = false;
  for (int left = budget; left > 0; --left) {
    const assay::TokenMask& mask = m.mask(left);
    allowed.clear();
    for (TokenId id = 0; id < t.vocab_size(); ++id) {
      if (mask.allows(id)) allowed.push_back(id);
    }
    check(allowed.empty() == mask.none());
    if (allowed.empty()) return text;  // a dead end, said at once
    const TokenId id = allowed[rng.below(allowed.size())];
    check(!t.is_stop(id) || m.may_end());
    if (t.is_stop(id)) break;
    check(m.accept(id));
    text += t.token_bytes(id, true);
  }
  ended = m.may_end();
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const int kind = data[0] % 3;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const auto grammar = std::make_shared<const assay::Grammar>(compile(kind, text));
    check(grammar->states() <= assay::kMaxGrammarStates);
    assay::GrammarMatcher matcher(grammar, vocabulary());
    assay::Rng rng(size + data[size - 1]);
    const int fewest = grammar->shortest();
    const bool enough = fewest <= 4 * kSteps;
    bool ended = false;
    const std::string reply = walk(matcher, enough ? fewest + kSteps : kSteps, rng, ended);
    if (kind == 1 && ended) check(!nlohmann::json::parse(reply, nullptr, false).is_discarded());
    if (kind == 2 && ended) {
      const auto parsed = assay::parse_reply(reply);
      check(parsed.error.empty() && parsed.tool_calls.size() == 1);
    }
  } catch (const assay::InputError&) {
    // refused, by name
  }
  return 0;
}
