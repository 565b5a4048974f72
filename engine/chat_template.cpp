#include "engine/chat_template.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "kernels/base/error.h"

namespace assay {
namespace {

using nlohmann::json;

constexpr std::string_view kQuote = "<|\"|>";
constexpr int kMaxDepth = 64;  // of nested values; recursion below is bounded by it

// ---- text rules of the template language ----

// Length in bytes of the white space character at the front (or back) of s; 0 when there is none.
std::size_t space_at_front(std::string_view s) {
  if (s.empty()) return 0;
  const auto b = static_cast<unsigned char>(s[0]);
  if ((b >= 0x09 && b <= 0x0D) || (b >= 0x1C && b <= 0x20)) return 1;
  for (const std::string_view wide : {"\xC2\x85", "\xC2\xA0"}) {
    if (s.starts_with(wide)) return 2;
  }
  for (const std::string_view wide : {"\xE1\x9A\x80",
                                      "\xE2\x80\xA8",
                                      "\xE2\x80\xA9",
                                      "\xE2\x80\xAF",
                                      "\xE2\x81\x9F",
                                      "\xE3\x80\x80"}) {
    if (s.starts_with(wide)) return 3;
  }
  if (s.size() >= 3 && s.starts_with("\xE2\x80")) {  // U+2000 to U+200A
    const auto last = static_cast<unsigned char>(s[2]);
    if (last >= 0x80 && last <= 0x8A) return 3;
  }
  return 0;
}
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
std::string upper(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

// Members of an object in the order of their lower-cased keys.
std::vector<std::pair<std::string_view, const json*>> sorted_members(const json& object) {
  std::vector<std::pair<std::string_view, const json*>> out;
  for (const auto& [key, value] : object.items()) out.emplace_back(key, &value);
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::lexicographical_compare(
        a.first.begin(), a.first.end(), b.first.begin(), b.first.end(), [](char x, char y) {
          return static_cast<unsigned char>(lower(x)) < static_cast<unsigned char>(lower(y));
        });
  });
  return out;
}

// A float as the template language prints it: shortest digits, exponent form from 1e16 up and below 1e-4.
std::string float_text(double v) {
  char buffer[64];
  const double magnitude = std::fabs(v);
  const bool plain = magnitude == 0.0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer,
                                 buffer + sizeof buffer,
                                 v,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string out(buffer, end);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

bool truthy(const json* v) {
  if (v == nullptr || v->is_null()) return false;
  if (v->is_boolean()) return v->get<bool>();
  if (v->is_number()) return v->get<double>() != 0.0;
  if (v->is_string()) return !v->get_ref<const std::string&>().empty();
  return !v->empty();
}
const json* member(const json& v, const char* key) {
  if (!v.is_object()) return nullptr;
  const auto it = v.find(key);
  return it == v.end() ? nullptr : &*it;
}

// ---- rendering ----

class Renderer {
 public:
  explicit Renderer(const ChatRequest& request) : request_(request) {}

  std::vector<ChatPiece> run() {
    const auto& all = request_.messages;
    if (all.empty()) throw InputError("messages: at least one message is needed");
    own("<bos>");
    const bool has_system = all[0].role == "system" || all[0].role == "developer";
    const bool has_tools = truthy(&request_.tools);
    if (request_.thinking || has_tools || has_system) {
      own("<|turn>system\n");
      if (request_.thinking) own("<|think|>\n");
      if (has_system) {
        for_message(0, "content");
        system_text(all[0]);
      }
      if (has_tools) tools();
      own("<turn|>\n");
    }
    first_ = has_system ? 1 : 0;
    last_user_ = -1;
    for (std::size_t i = first_; i < all.size(); ++i) {
      if (all[i].role == "user") last_user_ = static_cast<std::ptrdiff_t>(i);
    }
    for (std::size_t i = first_; i < all.size(); ++i) message(i);
    if (request_.generation_prompt) generation_prompt();
    return std::move(pieces_);
  }

 private:
  enum class Last { kOther, kToolCall, kToolResponse };

  // The template's own text, and text that came with the request.
  void own(std::string_view s) { put(s, true); }
  void given(std::string_view s) { put(s, false); }
  void put(std::string_view s, bool trusted) {
    if (s.empty()) return;
    if (pieces_.empty() || pieces_.back().trusted != trusted) pieces_.push_back({{}, trusted});
    pieces_.back().text += s;
  }
  void quoted(std::string_view s) {
    own(kQuote);
    given(s);
    own(kQuote);
  }
  void for_message(std::size_t i, const char* field) {
    where_ = "messages[" + std::to_string(i) + "]." + field;
  }
  [[noreturn]] void refuse(const std::string& why) const { throw InputError(where_ + ": " + why); }
  const std::string& text(const json& v) const {
    if (!v.is_string()) refuse("a string is needed, found " + std::string(v.type_name()));
    return v.get_ref<const std::string&>();
  }

  // ---- messages ----

  void system_text(const ChatMessage& m) {
    if (m.parts.empty()) {
      given(trim_chat(m.content));
      return;
    }
    for (const ContentPart& p : m.parts) {
      if (p.type != "text") refuse("a system message holds text only");
      given(trim_chat(p.text));
    }
  }

  void message(std::size_t i) {
    const ChatMessage& m = request_.messages[i];
    for_message(i, "role");
    if (m.role == "tool") {
      if (!answers_a_call(i)) refuse("a tool message that follows no tool call");
      return;  // written with the call
    }
    const bool model = m.role == "assistant" || m.role == "model";
    if (!model && m.role != "user" && m.role != "system" && m.role != "developer") {
      refuse("unknown role '" + m.role +
             "'; valid are system, developer, user, assistant, model, tool");
    }
    last_ = Last::kOther;
    if (!(model && previous_role(i) == "assistant"))
      own("<|turn>" + std::string(model ? "model" : m.role) + "\n");

    if (!m.reasoning.empty() && !m.tool_calls.empty() &&
        static_cast<std::ptrdiff_t>(i) > last_user_) {
      own("<|channel>thought\n");
      given(m.reasoning);
      own("\n<channel|>");
    }
    for (std::size_t c = 0; c < m.tool_calls.size(); ++c) {
      for_message(i, ("tool_calls[" + std::to_string(c) + "]").c_str());
      tool_call(m.tool_calls[c]);
      last_ = Last::kToolCall;
    }
    bool responded = false;
    for_message(i, "tool_responses");
    for (const ToolResponse& r : m.tool_responses) {
      tool_response(r.name.empty() ? "unknown" : r.name, r.response);
      responded = true;
    }
    if (m.tool_responses.empty() && !m.tool_calls.empty()) {
      for (std::size_t k = i + 1;
           k < request_.messages.size() && request_.messages[k].role == "tool";
           ++k) {
        folded_response(m, k);
        responded = true;
      }
    }
    if (responded) last_ = Last::kToolResponse;

    for_message(i, "content");
    content(m, model);
    const bool has_content = !m.content.empty() || !m.parts.empty();
    if (last_ == Last::kToolCall && !responded) {
      own("<|tool_response>");
    } else if (!(responded && !has_content)) {
      own("<turn|>\n");
    }
    text_after_response_ = responded && has_content;
  }

  bool answers_a_call(std::size_t i) const {
    while (i > first_ && request_.messages[i].role == "tool") --i;
    const ChatMessage& m = request_.messages[i];
    return m.role != "tool" && !m.tool_calls.empty();
  }
  std::string_view previous_role(std::size_t i) const {
    while (i > first_) {
      --i;
      if (request_.messages[i].role != "tool") return request_.messages[i].role;
    }
    return {};
  }

  void content(const ChatMessage& m, bool model) {
    const auto one = [&](std::string_view s) {
      if (model) {
        const std::string clean = without_channels(s);
        given(trim_chat(clean));
      } else {
        given(trim_chat(s));
      }
    };
    if (m.parts.empty()) {
      one(m.content);
      return;
    }
    for (const ContentPart& p : m.parts) {
      if (p.type == "text") {
        one(p.text);
      } else if (p.type == "image" || p.type == "audio" || p.type == "video") {
        own("<|" + p.type + "|>");
        last_ = Last::kOther;
      } else {
        refuse("unknown part type '" + p.type + "'; valid are text, image, audio, video");
      }
    }
  }

  // Drops every <|channel>..<channel|> section, closed or not, and stray closing marks.
  static std::string without_channels(std::string_view s) {
    std::string out;
    for (;;) {
      const std::size_t close = s.find("<channel|>");
      const std::string_view part = s.substr(0, close);
      out += part.substr(0, part.find("<|channel>"));
      if (close == std::string_view::npos) return out;
      s.remove_prefix(close + 10);
    }
  }

  void generation_prompt() {
    if (last_ == Last::kOther) {
      own("<|turn>model\n");
      if (!request_.thinking) own("<|channel>thought\n<channel|>");
    } else if (last_ == Last::kToolResponse && text_after_response_) {
      own("<|turn>model\n");  // the text after the response closed the turn
    }
  }

  // ---- tools ----

  void tool_call(const ToolCall& call) {
    own("<|tool_call>call:");
    given(call.name);
    own("{");
    if (call.arguments.is_object()) {
      members(call.arguments, false, 0);
    } else if (call.arguments.is_string()) {
      given(call.arguments.get_ref<const std::string&>());
    } else if (!call.arguments.is_null()) {
      refuse("arguments must be an object or a string");
    }
    own("}<tool_call|>");
  }

  void folded_response(const ChatMessage& caller, std::size_t k) {
    const ChatMessage& m = request_.messages[k];
    std::string name = m.name.empty() ? "unknown" : m.name;
    for (const ToolCall& c : caller.tool_calls) {
      if (c.id == m.tool_call_id) name = c.name;
    }
    std::string body = m.content;
    for (const ContentPart& p : m.parts) {
      if (p.type == "text") body += p.text;
    }
    tool_response(name, json(body));
  }

  void tool_response(std::string_view name, const json& response) {
    own("<|tool_response>response:");
    given(name);
    own("{");
    if (response.is_object()) {
      members(response, false, 0);
    } else {
      own("value:");
      value(response, false, 0);
    }
    own("}<tool_response|>");
  }

  void members(const json& object, bool quote_keys, int depth) {
    bool first = true;
    for (const auto& [key, v] : sorted_members(object)) {
      if (!first) own(",");
      first = false;
      if (quote_keys) {
        quoted(key);
      } else {
        given(key);
      }
      own(":");
      value(*v, quote_keys, depth + 1);
    }
  }

  void value(const json& v, bool quote_keys, int depth) {
    if (depth > kMaxDepth) refuse("nested deeper than " + std::to_string(kMaxDepth));
    switch (v.type()) {
      case json::value_t::string:
        quoted(v.get_ref<const std::string&>());
        return;
      case json::value_t::boolean:
        own(v.get<bool>() ? "true" : "false");
        return;
      case json::value_t::null:
        own("null");
        return;
      case json::value_t::number_integer:
      case json::value_t::number_unsigned:
        own(v.dump());
        return;
      case json::value_t::number_float:
        if (!std::isfinite(v.get<double>())) refuse("a number that is not finite");
        own(float_text(v.get<double>()));
        return;
      case json::value_t::object:
        own("{");
        members(v, quote_keys, depth);
        own("}");
        return;
      case json::value_t::array: {
        own("[");
        for (std::size_t i = 0; i < v.size(); ++i) {
          if (i > 0) own(",");
          value(v[i], quote_keys, depth + 1);
        }
        own("]");
        return;
      }
      default:
        refuse("a value that JSON does not know");
    }
  }

  // ---- tool declarations ----

  void tools() {
    where_ = "tools";
    if (!request_.tools.is_array()) refuse("an array is needed");
    for (std::size_t i = 0; i < request_.tools.size(); ++i) {
      where_ = "tools[" + std::to_string(i) + "].function";
      const json* f = member(request_.tools[i], "function");
      if (f == nullptr || !f->is_object()) refuse("an object is needed");
      own("<|tool>");
      declaration(*f);
      own("<tool|>");
    }
  }

  void string_list(const json& list) {
    if (!list.is_array()) refuse("'required' must be an array of strings");
    own("[");
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) own(",");
      quoted(text(list[i]));
    }
    own("]");
  }

  void declaration(const json& f) {
    const json* name = member(f, "name");
    if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty())
      refuse("'name' must be a string");
    own("declaration:");
    given(name->get_ref<const std::string&>());
    own("{description:");
    const json* description = member(f, "description");
    quoted(description == nullptr || description->is_null() ? std::string() : text(*description));
    if (const json* p = member(f, "parameters"); truthy(p)) {
      if (!p->is_object()) refuse("'parameters' must be an object");
      own(",parameters:{");
      if (const json* properties = member(*p, "properties"); truthy(properties)) {
        own("properties:{");
        parameters(*properties, 0);
        own("},");
      }
      if (const json* required = member(*p, "required"); truthy(required)) {
        own("required:");
        string_list(*required);
        own(",");
      }
      // Without a type the inner brace stays open: the published template does that.
      if (const json* type = member(*p, "type"); truthy(type)) {
        own("type:");
        quoted(type_name(type));
        own("}");
      }
    }
    if (const json* r = member(f, "response")) {
      own(",response:{");
      if (const json* d = member(*r, "description"); truthy(d)) {
        own("description:");
        quoted(text(*d));
        own(",");
      }
      if (const std::string type = type_name(member(*r, "type")); type == "OBJECT") {
        own("type:");
        quoted(type);
        own("}");
      }
    }
    own("}");
  }

  // Upper-cased. A list of types comes out as the template language prints a list.
  std::string type_name(const json* type) const {
    if (type == nullptr) return {};
    if (type->is_null()) return "NONE";
    if (type->is_string()) return upper(type->get_ref<const std::string&>());
    if (!type->is_array()) refuse("'type' must be a string or an array of strings");
    std::string out = "[";
    for (const json& t : *type) out += (out.size() > 1 ? ", '" : "'") + upper(text(t)) + "'";
    return out + "]";
  }

  // One schema's properties, sorted; `type` comes last in each.
  void parameters(const json& properties, int depth) {
    if (depth > kMaxDepth) refuse("nested deeper than " + std::to_string(kMaxDepth));
    if (!properties.is_object()) refuse("'properties' must be an object");
    bool first = true;
    for (const auto& [key, schema] : sorted_members(properties)) {
      // These names are taken for the schema's own fields, even as names of parameters.
      static constexpr std::string_view kSkipped[] = {
          "description", "type", "properties", "required", "nullable"};
      if (std::find(std::begin(kSkipped), std::end(kSkipped), key) != std::end(kSkipped)) continue;
      if (!first) own(",");
      first = false;
      given(key);
      own(":{");
      parameter(*schema, depth);
      own("}");
    }
  }

  void parameter(const json& schema, int depth) {
    bool comma = false;
    const auto separate = [&] {
      if (comma) own(",");
      comma = true;
    };
    if (const json* d = member(schema, "description"); truthy(d)) {
      separate();
      own("description:");
      quoted(text(*d));
    }
    const std::string type = type_name(member(schema, "type"));
    if (type == "STRING") {
      if (const json* values = member(schema, "enum"); truthy(values)) {
        separate();
        own("enum:");
        value(*values, true, depth);
      }
    } else if (type == "ARRAY") {
      if (const json* items = member(schema, "items"); truthy(items) && items->is_object()) {
        separate();
        own("items:{");
        array_items(*items, depth);
        own("}");
      }
    }
    if (truthy(member(schema, "nullable"))) {
      separate();
      own("nullable:true");
    }
    if (type == "OBJECT") {
      separate();
      own("properties:{");
      const json* properties = member(schema, "properties");
      parameters(properties != nullptr && properties->is_object() ? *properties : schema,
                 depth + 1);
      own("}");
      if (const json* required = member(schema, "required"); truthy(required)) {
        separate();
        own("required:");
        string_list(*required);
      }
    }
    separate();
    own("type:");
    quoted(type);
  }

  void array_items(const json& items, int depth) {
    bool first = true;
    for (const auto& [key, v] : sorted_members(items)) {
      if (v->is_null()) continue;
      if (!first) own(",");
      first = false;
      if (key == "properties") {
        own("properties:{");
        if (v->is_object()) parameters(*v, depth + 1);
        own("}");
      } else if (key == "required") {
        own("required:");
        string_list(*v);
      } else if (key == "type") {
        own("type:");
        if (v->is_array()) {
          json types = json::array();
          for (const json& t : *v) types.push_back(upper(text(t)));
          value(types, true, depth);
        } else {
          quoted(type_name(v));
        }
      } else {
        given(key);
        own(":");
        value(*v, true, depth + 1);
      }
    }
  }

  const ChatRequest& request_;
  std::vector<ChatPiece> pieces_;
  std::string where_;
  std::size_t first_ = 0;  // first message after the system message
  std::ptrdiff_t last_user_ = -1;
  Last last_ = Last::kOther;  // what the last message ended with
  bool text_after_response_ = false;
};

}  // namespace

std::string_view trim_chat(std::string_view s) {
  while (const std::size_t n = space_at_front(s)) s.remove_prefix(n);
  for (bool more = true; more && !s.empty();) {
    more = false;
    for (std::size_t n = 1; n <= 3 && n <= s.size(); ++n) {
      if (space_at_front(s.substr(s.size() - n)) == n) {
        s.remove_suffix(n);
        more = true;
        break;
      }
    }
  }
  return s;
}

std::vector<ChatPiece> render_chat(const ChatRequest& request) { return Renderer(request).run(); }

std::string render_chat_text(const ChatRequest& request) {
  std::string out;
  for (const ChatPiece& p : render_chat(request)) out += p.text;
  return out;
}

std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const ChatRequest& request) {
  std::vector<ChatPiece> pieces = render_chat(request);
  // The tokenizer's own BOS, whatever its text, in place of the literal.
  pieces.front().text.erase(0, std::string_view("<bos>").size());
  std::vector<TextPiece> views;
  views.reserve(pieces.size());
  for (const ChatPiece& p : pieces)
    views.push_back({p.text, p.trusted ? SpecialMode::kAll : SpecialMode::kNone});
  return tokenizer.encode(views, true);
}

std::vector<TokenId> encode_user_prompt(const Tokenizer& tokenizer, std::string_view text) {
  ChatRequest request;
  request.messages.push_back({.role = "user", .content = std::string(text)});
  return encode_chat(tokenizer, request);
}

ChatMessage chat_message_from_json(const nlohmann::json& message, std::size_t index) {
  const std::string where = "messages[" + std::to_string(index) + "]";
  const auto refuse = [&](const std::string& field, const std::string& why) {
    throw InputError(where + (field.empty() ? "" : "." + field) + ": " + why);
  };
  if (!message.is_object()) refuse("", "an object is needed");
  const auto text = [&](const json& v, const std::string& field) {
    if (!v.is_string()) refuse(field, "a string is needed, found " + std::string(v.type_name()));
    return v.get<std::string>();
  };
  const auto optional_text = [&](const json& from, const char* key, const std::string& field) {
    const json* v = member(from, key);
    return v == nullptr || v->is_null() ? std::string() : text(*v, field);
  };
  ChatMessage out;
  const json* role = member(message, "role");
  if (role == nullptr) refuse("role", "is missing");
  out.role = text(*role, "role");
  out.name = optional_text(message, "name", "name");
  out.tool_call_id = optional_text(message, "tool_call_id", "tool_call_id");
  out.reasoning = optional_text(message, "reasoning", "reasoning");
  if (out.reasoning.empty())
    out.reasoning = optional_text(message, "reasoning_content", "reasoning_content");

  if (const json* content = member(message, "content"); content != nullptr && !content->is_null()) {
    if (content->is_array()) {
      for (std::size_t i = 0; i < content->size(); ++i) {
        const std::string field = "content[" + std::to_string(i) + "]";
        const json& part = (*content)[i];
        ContentPart p{.type = optional_text(part, "type", field + ".type"), .text = {}};
        if (p.type == "text") p.text = optional_text(part, "text", field + ".text");
        if (p.type == "image_url") p.type = "image";
        if (p.type == "input_audio") p.type = "audio";
        if (p.type != "text" && p.type != "image" && p.type != "audio" && p.type != "video") {
          refuse(field + ".type", "valid are text, image, audio, video");
        }
        out.parts.push_back(std::move(p));
      }
    } else if (content->is_object() && out.role == "tool") {
      out.content = content->dump(
          -1, ' ', false, json::error_handler_t::replace);  // the format takes text here
    } else {
      out.content = text(*content, "content");
    }
  }
  if (const json* calls = member(message, "tool_calls"); calls != nullptr && !calls->is_null()) {
    if (!calls->is_array()) refuse("tool_calls", "an array is needed");
    for (std::size_t i = 0; i < calls->size(); ++i) {
      const std::string field = "tool_calls[" + std::to_string(i) + "]";
      const json* f = member((*calls)[i], "function");
      if (f == nullptr || !f->is_object()) refuse(field + ".function", "an object is needed");
      ToolCall call;
      call.id = optional_text((*calls)[i], "id", field + ".id");
      call.name = optional_text(*f, "name", field + ".function.name");
      if (call.name.empty()) refuse(field + ".function.name", "is missing");
      if (const json* a = member(*f, "arguments"); a != nullptr && a->is_string()) {
        // JSON in a string, as OpenAI's API writes it; anything else stays text.
        json parsed = json::parse(a->get_ref<const std::string&>(), nullptr, false);
        call.arguments = parsed.is_object() ? parsed : *a;
      } else if (a != nullptr && (a->is_object() || a->is_null())) {
        call.arguments = *a;
      } else if (a != nullptr) {
        refuse(field + ".function.arguments", "an object or a string is needed");
      }
      out.tool_calls.push_back(std::move(call));
    }
  }
  if (const json* responses = member(message, "tool_responses");
      responses != nullptr && !responses->is_null()) {
    if (!responses->is_array()) refuse("tool_responses", "an array is needed");
    for (std::size_t i = 0; i < responses->size(); ++i) {
      const json& r = (*responses)[i];
      const json* value = member(r, "response");
      out.tool_responses.push_back(
          {.name = optional_text(r, "name", "tool_responses[" + std::to_string(i) + "].name"),
           .response = value == nullptr ? json() : *value});
    }
  }
  const json* content = member(message, "content");
  const bool calls = (out.role == "assistant" || out.role == "model") &&
                     !(out.tool_calls.empty() && out.tool_responses.empty());
  if ((content == nullptr || content->is_null()) && !calls) {
    refuse("content", "is missing; only an assistant's message with tool_calls may be without");
  }
  return out;
}

}  // namespace assay
