// The one way in for JSON from strangers: bounded before a value exists. Copying and writing a value recurse, so depth is
// a matter of safety; a duplicate key would be read differently by the next program in line, so it is refused.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace assay {

struct JsonLimits {
  int depth = 32;
  std::size_t values = std::size_t{1} << 20;  // a 262,144-token prompt fits four times
};

enum class JsonFault {
  kNone,
  kSyntax,  // not JSON, not UTF-8, a number that is no finite double
  kDepth,
  kValues,
  kDuplicateKey,
};

struct JsonProblem {
  JsonFault fault = JsonFault::kNone;
  std::string message = {};  // with the byte offset; safe to send to the client
};

// kNone and the value in `out`, or what is wrong. Never throws but std::bad_alloc.
JsonProblem read_json(std::string_view text, nlohmann::json& out, const JsonLimits& limits = {});

}  // namespace assay
