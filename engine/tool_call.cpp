#include "engine/tool_call.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

namespace assay {
namespace {

using nlohmann::json;

constexpr std::string_view kQuote = "<|\"|>";
constexpr int kMaxDepth = 64;  // of nested values; recursion below is bounded by it

// Values as tool calls write them: bare keys, strings in <|"|>.
class CallParser {
 public:
  explicit CallParser(std::string_view text) : text_(text) {}

  // call:NAME{..}<tool_call|>; advances past it. Returns nothing and sets error() when it is malformed.
  std::optional<ToolCall> call() {
    ToolCall out;
    if (!eat("call:")) return fail("'call:' expected");
    const std::size_t brace = text_.find('{', at_);
    if (brace == std::string_view::npos || brace == at_) return fail("a name and '{' expected");
    out.name = std::string(text_.substr(at_, brace - at_));
    if (out.name.find('<') != std::string::npos) return fail("a name and '{' expected");
    at_ = brace;
    auto arguments = value(0);
    if (!arguments) return std::nullopt;
    out.arguments = std::move(*arguments);
    if (!eat("<tool_call|>")) return fail("'<tool_call|>' expected");
    return out;
  }
  const std::string& error() const { return error_; }
  std::size_t at() const { return at_; }

 private:
  bool eat(std::string_view s) {
    if (text_.substr(at_, s.size()) != s) return false;
    at_ += s.size();
    return true;
  }
  std::nullopt_t fail(const std::string& why) {
    if (error_.empty()) error_ = why + " at byte " + std::to_string(at_) + " of the call";
    return std::nullopt;
  }
  std::optional<std::string> quoted_rest() {
    const std::size_t end = text_.find(kQuote, at_);
    if (end == std::string_view::npos) return fail("a string without its closing quote");
    std::string out(text_.substr(at_, end - at_));
    at_ = end + kQuote.size();
    return out;
  }

  std::optional<json> value(int depth) {
    if (depth > kMaxDepth) return fail("nested too deep");
    if (eat(kQuote)) {
      auto s = quoted_rest();
      if (!s) return std::nullopt;
      return json(std::move(*s));
    }
    if (eat("{")) return object(depth);
    if (eat("[")) return array(depth);
    const std::size_t end = text_.find_first_of(",]}", at_);
    if (end == std::string_view::npos) return fail("the call is cut off");
    const std::string word(text_.substr(at_, end - at_));
    json v;
    if (word == "null" || word == "None") {
      v = nullptr;
    } else if (word == "true" || word == "false") {
      v = word == "true";
    } else {
      v = json::parse(word, nullptr, false);
      if (!v.is_number()) return fail("'" + word.substr(0, 40) + "' is no value");
    }
    at_ = end;
    return v;
  }
  std::optional<json> object(int depth) {
    json out = json::object();
    if (eat("}")) return out;
    for (;;) {
      std::string key;
      if (eat(kQuote)) {
        auto k = quoted_rest();
        if (!k) return std::nullopt;
        key = std::move(*k);
      } else {
        const std::size_t end = text_.find_first_of(":}", at_);
        if (end == std::string_view::npos || end == at_) return fail("a key expected");
        key = std::string(text_.substr(at_, end - at_));
        at_ = end;
      }
      if (!eat(":")) return fail("':' expected");
      auto v = value(depth + 1);
      if (!v) return std::nullopt;
      out[key] = std::move(*v);
      if (eat("}")) return out;
      if (!eat(",")) return fail("',' or '}' expected");
    }
  }
  std::optional<json> array(int depth) {
    json out = json::array();
    if (eat("]")) return out;
    for (;;) {
      auto v = value(depth + 1);
      if (!v) return std::nullopt;
      out.push_back(std::move(*v));
      if (eat("]")) return out;
      if (!eat(",")) return fail("',' or ']' expected");
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string error_;
};

}  // namespace

ParsedReply parse_reply(std::string_view text) {
  ParsedReply out;
  const auto broken = [&](const std::string& why, std::string_view raw) {
    if (!out.error.empty()) return;
    out.error = why;
    out.raw = raw;
  };
  for (const std::string_view end : {"<turn|>", "<|tool_response>", "<eos>"}) {
    if (text.ends_with(end)) text.remove_suffix(end.size());
  }
  constexpr std::string_view kOpen = "<|channel>";
  constexpr std::string_view kClose = "<channel|>";
  constexpr std::string_view kCall = "<|tool_call>";
  constexpr std::string_view kCallEnd = "<tool_call|>";
  const std::string_view whole = text;
  while (!text.empty()) {
    const std::size_t mark =
        std::min({text.find(kOpen), text.find(kClose), text.find(kCall), text.find(kCallEnd)});
    out.content += text.substr(0, mark);
    if (mark == std::string_view::npos) break;
    text.remove_prefix(mark);
    if (text.starts_with(kClose)) {  // stray
      text.remove_prefix(kClose.size());
    } else if (text.starts_with(kCallEnd)) {
      broken("'<tool_call|>' without its beginning", whole);
      out.content += kCallEnd;
      text.remove_prefix(kCallEnd.size());
    } else if (text.starts_with(kOpen)) {
      text.remove_prefix(kOpen.size());
      if (text.starts_with("thought")) text.remove_prefix(7);
      if (text.starts_with("\n")) text.remove_prefix(1);
      const std::size_t close = text.find(kClose);
      const std::string_view thought = trim_chat(text.substr(0, close));
      if (!out.reasoning.empty() && !thought.empty()) out.reasoning += '\n';
      out.reasoning += thought;
      text =
          close == std::string_view::npos ? std::string_view() : text.substr(close + kClose.size());
    } else {
      CallParser parser(text.substr(kCall.size()));
      if (auto call = parser.call()) {
        out.tool_calls.push_back(std::move(*call));
        text.remove_prefix(kCall.size() + parser.at());
      } else {
        broken(parser.error(), text);
        out.content += kCall;
        text.remove_prefix(kCall.size());
      }
    }
  }
  return out;
}

}  // namespace assay
