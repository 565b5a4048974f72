// Fuzz target: any bytes as a reply. It is taken apart without losing a call in silence, and calls that were read are
// read again from what the template writes of them.
#include <nlohmann/json.hpp>

#include "engine/chat_template.h"
#include "engine/fuzz/spec_tokenizer.h"
#include "engine/tool_call.h"
#include "kernels/base/error.h"

using assay::check;
using nlohmann::json;

namespace {

constexpr std::string_view kMark = "<|tool_call>";

// Names that can be written bare: the template does not quote them.
bool plain(const json& v) {
  if (v.is_object()) {
    for (const auto& [key, value] : v.items()) {
      if (key.empty() || key.find_first_of(":{}[],<|\"") != std::string::npos || !plain(value))
        return false;
    }
  }
  if (v.is_array()) {
    for (const json& value : v) {
      if (!plain(value)) return false;
    }
  }
  return !v.is_string() || v.get_ref<const std::string&>().find("<|\"|>") == std::string::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const assay::ParsedReply r = assay::parse_reply(text);
  check(r.error.empty() == r.raw.empty());
  check(r.content.size() + r.reasoning.size() <= size);
  if (text.find("<|channel>") == std::string_view::npos &&
      text.find(kMark) != std::string_view::npos) {
    check(!r.tool_calls.empty() || !r.error.empty());
  }
  for (const assay::ToolCall& call : r.tool_calls) {
    check(!call.name.empty());
    if (!call.arguments.is_object() || !plain(call.arguments)) continue;
    assay::ChatRequest request;
    request.messages.push_back({.role = "user", .content = "u"});
    request.messages.push_back({.role = "assistant", .tool_calls = {call}});
    std::string again;
    try {
      again = assay::render_chat_text(request);
    } catch (const assay::InputError&) {
      continue;  // nested too deep for the template
    }
    const auto back = assay::parse_reply(std::string_view(again).substr(again.find(kMark)));
    check(back.error.empty() && back.tool_calls.size() == 1);
    check(back.tool_calls[0].name == call.name && back.tool_calls[0].arguments == call.arguments);
  }
  return 0;
}
