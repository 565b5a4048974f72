// Request bodies into checked values: the wire format's table of fields and ranges, and nothing else reads JSON requests.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/turn.h"

namespace assay {

enum class TurnRoute {
  kChat,     // /v1/chat
  kOneshot,  // /v1/oneshot: no session, no prefix
  kOpenAi,   // /v1/chat/completions: unknown fields are listed, not refused
};

struct DecodedTurn {
  TurnRequest request = {};
  bool stream = true;
  std::string model = {};                 // echoed
  std::vector<std::string> ignored = {};  // kOpenAi: fields that were not looked at
  bool include_usage = false;             // kOpenAi: stream_options.include_usage
};
// Nothing: `out` is whole and inside every range that the model's sizes set.
std::optional<TurnError> decode_turn(std::string_view body,
                                     TurnRoute route,
                                     const ModelInfo& model,
                                     DecodedTurn& out);

std::optional<TurnError> decode_embed(std::string_view body,
                                      const ModelInfo& model,
                                      EmbedRequest& out);

struct Similarity {
  std::string spaces[2] = {};
  std::vector<double> vectors[2] = {};
};
std::optional<TurnError> decode_similarity(std::string_view body, Similarity& out);

// {id}
std::optional<TurnError> decode_abort(std::string_view body, std::string& id);

struct TokenizeRequest {
  std::string content = {};
  bool special = false;
  std::vector<std::string> ignored = {};
};
std::optional<TurnError> decode_tokenize(std::string_view body, TokenizeRequest& out);

struct DetokenizeRequest {
  std::vector<TokenId> tokens = {};
  std::vector<std::string> ignored = {};
};
std::optional<TurnError> decode_detokenize(std::string_view body,
                                           const ModelInfo& model,
                                           DetokenizeRequest& out);

// Base64 with padding, of bytes; nothing when it is none.
std::optional<std::string> base64_decode(std::string_view text);
std::string base64_encode(std::string_view bytes);

}  // namespace assay
