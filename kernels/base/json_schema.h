// Checks a JSON document against a schema of results/schema/: the part of JSON Schema 2020-12 that the records need.
// Keywords: type, enum, const, required, properties, additionalProperties (false or a schema), items, minItems,
// minimum, pattern, minLength, $ref to "#/$defs/..". Any other keyword but titles is a logic_error: a check that a schema
// states and nobody makes would be worse than none.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace assay {

// Empty when the document fits; else one line per fault: "/cases/0/rel_l2: expected number, got string".
std::vector<std::string> schema_faults(const nlohmann::json& schema,
                                       const nlohmann::json& document);

// The schema compiled into this build by the name that records carry ("assay-parity"); null pointer when unknown.
const nlohmann::json* schema_named(std::string_view name);
// Every such name, sorted.
std::vector<std::string> schema_names();

}  // namespace assay
