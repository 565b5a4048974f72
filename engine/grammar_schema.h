// Grammars out of JSON schemas: for replies that are JSON, and for Gemma 4's tool calls.
// Known keywords: type (one or a list), properties, required, additionalProperties (true, false), items, minItems,
// maxItems, enum, const, anyOf, oneOf, minLength and maxLength (up to kMaxBoundedLength), nullable, $ref into the document (also to itself),
// allOf of one. Objects hold their properties in the order of their names. What else would narrow the reply is refused for
// JSON and noted for tools.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/grammar.h"

namespace assay {

inline constexpr int kMaxBoundedLength = 256;  // of minLength, maxLength, minItems, maxItems

// What a tool's grammar does not hold the model to.
struct SchemaNote {
  std::size_t tool = 0;
  std::string path;  // "tools[0].function.parameters.properties.port.pattern"
  std::string text;  // "not enforced"
};
struct SchemaGrammar {
  Grammar grammar;
  std::vector<SchemaNote> notes;
};

// A JSON text that fits the schema. Throws InputError naming the path in the schema for what it cannot enforce, and as
// Grammar::parse.
Grammar json_grammar(const nlohmann::json& schema);

// The grammar, with a thought in front of it or none.
Grammar allow_thought(Grammar grammar);

enum class ToolUse {
  kAuto,      // text, then calls or none
  kNone,      // text without calls
  kRequired,  // at least one call, after a thought at most
};
struct ToolGrammarOptions {
  ToolUse use = ToolUse::kAuto;
  std::string only = {};  // with kRequired: this function
  bool parallel = true;   // several calls in one reply
};
// tools as in ChatRequest. Throws InputError naming the tool: no name, a name that the format cannot carry, the same
// name twice, an unknown `only`, and as Grammar::parse.
SchemaGrammar tool_grammar(const nlohmann::json& tools, const ToolGrammarOptions& options);

}  // namespace assay
