// Gemma 4's replies taken apart: thoughts, text and tool calls (spec 6).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat_template.h"

namespace assay {

// Works on text decoded with control tokens shown or hidden.
struct ParsedReply {
  std::string reasoning = {};
  std::string content = {};
  std::vector<ToolCall> tool_calls = {};
  // Why a tool call could not be read, the first one's reason; its raw text then stays in content.
  std::string error = {};
  std::string raw = {};  // that call from its mark on, to the end of the reply
};
ParsedReply parse_reply(std::string_view text);

}  // namespace assay
