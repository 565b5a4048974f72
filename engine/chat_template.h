// The chat format of the reference model (spec 6), rendered in C++: the Jinja text of a file is never executed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/tokenizer.h"

namespace assay {

struct ToolCall {
  std::string id = {};  // resolves a later tool message; may be empty
  std::string name = {};
  // An object, or a string that is written as it stands between the braces.
  nlohmann::json arguments = {};
};

// A result inside the assistant's own message (the format's native form); role "tool" messages are folded into it.
struct ToolResponse {
  std::string name = {};
  nlohmann::json response = {};  // an object, else written as {value:..}
};

struct ContentPart {
  std::string type = {};  // text, image, audio, video
  std::string text = {};
};

struct ChatMessage {
  std::string role = {};  // system, developer, user, assistant (or model), tool
  std::string content = {};
  std::vector<ContentPart> parts = {};  // when not empty, instead of content
  std::string reasoning = {};           // of an assistant message
  std::vector<ToolCall> tool_calls = {};
  std::vector<ToolResponse> tool_responses = {};
  // Of a tool message: the call it answers and, when that is unknown, the function's name.
  std::string tool_call_id = {};
  std::string name = {};
};

struct ChatRequest {
  std::vector<ChatMessage> messages = {};
  // Null, or an array of {type: function, function: {name, description, parameters}}.
  nlohmann::json tools = nullptr;
  bool thinking = false;
  bool generation_prompt = true;
};

// Rendered text in pieces: `trusted` is the template's own (special tokens are meant), the rest came with the request.
struct ChatPiece {
  std::string text;
  bool trusted = true;
};

// Throws InputError naming message and field for a role or tool declaration that the format cannot carry.
std::vector<ChatPiece> render_chat(const ChatRequest& request);
std::string render_chat_text(const ChatRequest& request);
// The ids of render_chat: special tokens only from trusted pieces, no BOS besides the template's own.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const ChatRequest& request);
// One user message, thinking off: what `assay generate --chat` sends.
std::vector<TokenId> encode_user_prompt(const Tokenizer& tokenizer, std::string_view text);

// Without the white space at both ends, by the template language's own notion, which includes more than ASCII.
std::string_view trim_chat(std::string_view text);

// A message from its OpenAI-shaped JSON. InputError naming the field.
ChatMessage chat_message_from_json(const nlohmann::json& message, std::size_t index);

}  // namespace assay
