#include "engine/daemon/request_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "engine/chat_template.h"
#include "engine/daemon/json_reader.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxMessages = 4096;
constexpr std::size_t kMaxStops = 8;
constexpr std::size_t kMaxStopBytes = 256;
constexpr std::size_t kMaxTools = 128;
constexpr std::size_t kMaxGrammarBytes = 64 * 1024;
constexpr std::size_t kMaxFrames = 64;
constexpr std::size_t kMaxInputs = 64;
constexpr std::size_t kMaxSpaceDims = 65536;

// Leaves the decoder at the first fault; caught in guarded() below.
struct Refused {
  TurnError error;
};
[[noreturn]] void refuse(TurnCode code, const std::string& param, const std::string& message) {
  throw Refused{
      {.code = code, .message = param.empty() ? message : param + ": " + message, .param = param}};
}
[[noreturn]] void refuse(const std::string& param, const std::string& message) {
  refuse(TurnCode::kBadRequest, param, message);
}

std::int64_t integer(const json& v, const std::string& field, std::int64_t low, std::int64_t high) {
  const std::string range = std::to_string(low) + ".." + std::to_string(high);
  if (!v.is_number_integer())
    refuse(field, "a whole number in " + range + " is needed, found " + v.type_name());
  const bool over =
      v.is_number_unsigned() &&
      v.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::int64_t n = over ? 0 : v.get<std::int64_t>();
  if (over || n < low || n > high) refuse(field, "must be in " + range);
  return n;
}
double real(const json& v, const std::string& field, double low, double high) {
  if (!v.is_number()) refuse(field, std::string("a number is needed, found ") + v.type_name());
  const auto d = v.get<double>();
  if (!(d >= low && d <= high)) {
    refuse(field, "must be in " + json(low).dump() + ".." + json(high).dump());
  }
  return d;
}
bool boolean(const json& v, const std::string& field) {
  if (!v.is_boolean())
    refuse(field, std::string("true or false is needed, found ") + v.type_name());
  return v.get<bool>();
}
const std::string& text(const json& v, const std::string& field) {
  if (!v.is_string()) refuse(field, std::string("a string is needed, found ") + v.type_name());
  return v.get_ref<const std::string&>();
}
const json& list(const json& v, const std::string& field, std::size_t most) {
  if (!v.is_array()) refuse(field, std::string("a list is needed, found ") + v.type_name());
  if (v.size() > most) refuse(field, "more than " + std::to_string(most) + " entries");
  return v;
}
const json& object(const json& v, const std::string& field) {
  if (!v.is_object()) refuse(field, std::string("an object is needed, found ") + v.type_name());
  return v;
}
std::string at(const std::string& field, std::size_t i) {
  return field + "[" + std::to_string(i) + "]";
}

// For messages: a key of the request, made printable.
std::string printable(const std::string& key) {
  std::string out;
  for (const char c : key.substr(0, 64)) out += c >= 0x20 && c < 0x7F ? c : '?';
  return out;
}
bool is_one_of(const std::string& key, std::initializer_list<const char*> known) {
  return std::any_of(known.begin(), known.end(), [&](const char* k) { return key == k; });
}
void only(const json& v, const std::string& where, std::initializer_list<const char*> known) {
  for (const auto& [key, unused] : v.items()) {
    if (!is_one_of(key, known)) {
      const std::string name = (where.empty() ? "" : where + ".") + printable(key);
      refuse(TurnCode::kUnknownField, name, "no such field");
    }
  }
}
const json* find(const json& v, const char* key) {
  const auto it = v.find(key);
  return it == v.end() ? nullptr : &*it;
}

// Of a session, a prefix or a function: may become a file's name.
std::string plain_name(const json& v, const std::string& field) {
  const std::string& s = text(v, field);
  const auto fine = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  if (s.empty() || s.size() > 64 || s[0] == '.' || !std::all_of(s.begin(), s.end(), fine)) {
    refuse(field, "1..64 letters, digits, '.', '_' or '-' are needed, not '.' first");
  }
  return s;
}

std::vector<TokenId> token_ids(const json& v,
                               const std::string& field,
                               const ModelInfo& model,
                               std::size_t most) {
  if (!v.is_array()) refuse(field, std::string("a list is needed, found ") + v.type_name());
  if (v.empty()) refuse(field, "no token ids");
  if (v.size() > most) {
    refuse(TurnCode::kContextExceeded,
           field,
           "the prompt has " + std::to_string(v.size()) + " tokens, the context holds " +
               std::to_string(most));
  }
  std::vector<TokenId> ids;
  ids.reserve(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    const json& e = v[i];
    const std::string range =
        "token ids are whole numbers in 0.." + std::to_string(model.vocabulary - 1);
    if (!e.is_number_integer()) refuse(at(field, i), range);
    const bool fits = e.is_number_unsigned() &&
                      e.get<std::uint64_t>() < static_cast<std::uint64_t>(model.vocabulary);
    if (!fits) refuse(TurnCode::kTokenOutOfRange, at(field, i), range);
    ids.push_back(static_cast<TokenId>(e.get<std::uint64_t>()));
  }
  return ids;
}

// A tool call's arguments may be JSON inside a string: the same bounds hold there, before anything copies the value.
void check_inner_json(const json& message, const std::string& where) {
  const json* calls = find(message, "tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const json* f = (*calls)[i].is_object() ? find((*calls)[i], "function") : nullptr;
    const json* a = f != nullptr && f->is_object() ? find(*f, "arguments") : nullptr;
    if (a == nullptr || !a->is_string()) continue;
    json unused;
    const JsonProblem problem = read_json(a->get_ref<const std::string&>(), unused);
    if (problem.fault != JsonFault::kNone && problem.fault != JsonFault::kSyntax) {
      refuse(at(where + ".tool_calls", i) + ".function.arguments", problem.message);
    }
  }
}

// What a part carries that this build cannot see: said, not dropped.
void refuse_media(const json& message, const std::string& where) {
  const json* content = find(message, "content");
  if (content == nullptr || !content->is_array()) return;
  for (std::size_t i = 0; i < content->size(); ++i) {
    const json& part = (*content)[i];
    if (!part.is_object()) refuse(at(where + ".content", i), "an object is needed");
    for (const char* key : {"image_url", "input_audio", "file", "video_url"}) {
      if (!part.contains(key)) continue;
      const bool image = std::strcmp(key, "image_url") == 0;
      const std::string name = image                                  ? "vision"
                               : std::strcmp(key, "input_audio") == 0 ? "audio"
                                                                      : "files";
      throw Refused{{.code = TurnCode::kUnsupported,
                     .message = at(where + ".content", i) + ": this server has no encoder for it",
                     .param = at(where + ".content", i),
                     .lost = {{name, "no encoder in this build; rows may be sent as `frames`"}}}};
    }
  }
}

class TurnDecoder {
 public:
  TurnDecoder(TurnRoute route, const ModelInfo& model, DecodedTurn& out)
      : route_(route), model_(model), out_(out), request_(out.request) {}

  void decode(const json& body) {
    object(body, "the request");
    request_.oneshot = route_ == TurnRoute::kOneshot;
    if (openai()) out_.stream = false;  // that API's default
    for (const auto& [key, value] : body.items()) {
      if (openai() && value.is_null() && key != "messages")
        continue;  // stock clients write null for "not set"
      if (!field(key, value)) {
        if (!openai()) refuse(TurnCode::kUnknownField, printable(key), "no such field");
        out_.ignored.push_back(printable(key));
      }
    }
    finish();
  }

 private:
  bool openai() const { return route_ == TurnRoute::kOpenAi; }

  bool field(const std::string& key, const json& v) {
    // Both shapes.
    if (key == "model") return out_.model = text(v, key).substr(0, 256), true;
    if (key == "messages") return messages(v), true;
    if (key == "max_tokens") return max_tokens(v, key), true;
    if (key == "temperature") return request_.sampling.temperature = real(v, key, 0, 10), true;
    if (key == "top_p") return request_.sampling.top_p = real(v, key, 0, 1), true;
    if (key == "top_k") {
      return request_.sampling.top_k =
                 static_cast<int>(integer(v, key, 0, std::numeric_limits<int>::max())),
             true;
    }
    if (key == "seed") {
      const std::int64_t low = openai() ? std::numeric_limits<std::int64_t>::min() : 0;
      request_.sampling.seed = static_cast<std::uint64_t>(
          integer(v, key, low, std::numeric_limits<std::int64_t>::max()));
      return true;
    }
    if (key == "stop") return stops(v), true;
    if (key == "eot_bias") return request_.eot_bias = real(v, key, -100, 100), true;
    if (key == "tools") return tools(v), true;
    if (key == "tool_choice") return tool_choice(v), true;
    if (key == "grammar") return grammar(v), true;
    if (key == "thinking") return thinking_ = boolean(v, key), true;
    if (key == "stream") return out_.stream = boolean(v, key), true;
    if (key == "session" && route_ != TurnRoute::kOneshot)
      return request_.session = plain_name(v, key), true;
    if (key == "prefix" && route_ != TurnRoute::kOneshot)
      return request_.prefix = plain_name(v, key), true;
    return openai() ? openai_field(key, v) : own_field(key, v);
  }

  bool own_field(const std::string& key, const json& v) {
    if (key == "ids") {
      request_.ids = token_ids(v, key, model_, static_cast<std::size_t>(model_.context));
      return has_ids_ = true;
    }
    if (key == "raw_logits") {
      return request_.raw_logits = static_cast<int>(integer(v, key, 0, model_.vocabulary)), true;
    }
    if (key == "logprobs")
      return request_.logprobs = static_cast<int>(integer(v, key, 0, 20)), true;
    if (key == "byte_exact") return request_.byte_exact = boolean(v, key), true;
    if (key == "frames") return frames(v), true;
    return false;
  }

  bool openai_field(const std::string& key, const json& v) {
    if (key == "max_completion_tokens") return max_tokens(v, key), true;
    if (key == "logprobs") return logprobs_ = boolean(v, key), true;
    if (key == "top_logprobs")
      return top_logprobs_ = static_cast<int>(integer(v, key, 0, 20)), true;
    if (key == "n") return integer(v, key, 1, 1), true;
    if (key == "stream_options") {
      for (const auto& [name, value] : object(v, key).items()) {
        if (name == "include_usage" && !value.is_null()) {
          out_.include_usage = boolean(value, "stream_options.include_usage");
        } else {
          out_.ignored.push_back("stream_options." + printable(name));
        }
      }
      return true;
    }
    if (key == "response_format") return response_format(v), true;
    return false;
  }

  void max_tokens(const json& v, const std::string& key) {
    request_.max_tokens = static_cast<int>(integer(v, key, 1, model_.context));
  }

  void messages(const json& v) {
    list(v, "messages", kMaxMessages);
    if (v.empty()) refuse("messages", "no messages");
    auto chat = std::make_shared<ChatRequest>();
    for (std::size_t i = 0; i < v.size(); ++i) {
      const std::string where = at("messages", i);
      object(v[i], where);
      if (!openai()) {
        only(v[i],
             where,
             {"role",
              "content",
              "name",
              "tool_call_id",
              "reasoning",
              "reasoning_content",
              "tool_calls",
              "tool_responses"});
      }
      check_inner_json(v[i], where);
      refuse_media(v[i], where);
      try {
        chat->messages.push_back(chat_message_from_json(v[i], i));
      } catch (const InputError& e) {  // "messages[0].role: is missing", written for the client
        const std::string said = e.what();
        throw Refused{{.code = TurnCode::kBadRequest,
                       .message = said,
                       .param = said.substr(0, said.find(": "))}};
      }
      static constexpr const char* kRoles[] = {
          "system", "developer", "user", "assistant", "model", "tool"};
      const std::string& role = chat->messages.back().role;
      if (std::none_of(
              std::begin(kRoles), std::end(kRoles), [&](const char* r) { return role == r; })) {
        refuse(where + ".role", "valid are system, developer, user, assistant, model, tool");
      }
    }
    chat_ = std::move(chat);
  }

  void stops(const json& v) {
    const auto add = [&](const json& s, const std::string& field) {
      const std::string& stop = text(s, field);
      if (stop.empty() || stop.size() > kMaxStopBytes) {
        refuse(field, "1.." + std::to_string(kMaxStopBytes) + " bytes are needed");
      }
      request_.stop.push_back(stop);
    };
    if (v.is_string()) return add(v, "stop");
    list(v, "stop", kMaxStops);
    for (std::size_t i = 0; i < v.size(); ++i) add(v[i], at("stop", i));
  }

  void tools(const json& v) {
    list(v, "tools", kMaxTools);
    for (std::size_t i = 0; i < v.size(); ++i) {
      const std::string where = at("tools", i);
      object(v[i], where);
      const json* type = find(v[i], "type");
      if (type == nullptr || !type->is_string() || *type != "function")
        refuse(where + ".type", "must be function");
      const json* f = find(v[i], "function");
      if (f == nullptr) refuse(where + ".function", "is missing");
      object(*f, where + ".function");
      if (!openai()) {
        only(v[i], where, {"type", "function"});
        only(*f, where + ".function", {"name", "description", "parameters", "strict"});
      }
      const json* name = find(*f, "name");
      if (name == nullptr) refuse(where + ".function.name", "is missing");
      if (!tool_names_.insert(plain_name(*name, where + ".function.name")).second) {
        refuse(where + ".function.name", "is declared twice");
      }
      if (const json* d = find(*f, "description"); d != nullptr && !d->is_null()) {
        text(*d, where + ".function.description");
      }
      if (const json* p = find(*f, "parameters"); p != nullptr && !p->is_null()) {
        object(*p, where + ".function.parameters");
      }
    }
    if (!v.empty()) tools_ = v;
  }

  void tool_choice(const json& v) {
    if (v.is_string()) {
      const auto& s = v.get_ref<const std::string&>();
      if (s == "auto") {
        request_.tool_choice = ToolChoice::kAuto;
      } else if (s == "none") {
        request_.tool_choice = ToolChoice::kNone;
      } else if (s == "required") {
        request_.tool_choice = ToolChoice::kRequired;
      } else {
        refuse("tool_choice",
               "valid are auto, none, required or {type: function, function: {name}}");
      }
      return;
    }
    object(v, "tool_choice");
    const json* f = find(v, "function");
    if (f == nullptr) refuse("tool_choice.function", "is missing");
    const json* name = find(object(*f, "tool_choice.function"), "name");
    if (name == nullptr) refuse("tool_choice.function.name", "is missing");
    request_.tool_choice = ToolChoice::kRequired;
    request_.tool_name = plain_name(*name, "tool_choice.function.name");
  }

  void set_grammar(GrammarKind kind, std::string rules, const std::string& field) {
    if (rules.empty() || rules.size() > kMaxGrammarBytes) {
      refuse(TurnCode::kBadGrammar,
             field,
             "1.." + std::to_string(kMaxGrammarBytes) + " bytes are needed");
    }
    if (request_.grammar_kind != GrammarKind::kNone) refuse(field, "the request has two grammars");
    request_.grammar_kind = kind;
    request_.grammar = std::move(rules);
  }
  void grammar(const json& v) {
    if (v.is_string()) return set_grammar(GrammarKind::kRules, v.get<std::string>(), "grammar");
    object(v, "grammar");
    only(v, "grammar", {"json_schema"});
    const json* schema = find(v, "json_schema");
    if (schema == nullptr) refuse("grammar", "rules as a string, or {json_schema: {..}}");
    set_grammar(GrammarKind::kJsonSchema,
                object(*schema, "grammar.json_schema").dump(),
                "grammar.json_schema");
  }
  void response_format(const json& v) {
    const json* type = find(object(v, "response_format"), "type");
    if (type == nullptr) refuse("response_format.type", "is missing");
    const std::string kind = text(*type, "response_format.type");
    if (kind == "text") return;
    if (kind == "json_object") return set_grammar(GrammarKind::kJson, "{}", "response_format");
    if (kind != "json_schema")
      refuse("response_format.type", "valid are text, json_object, json_schema");
    const json* outer = find(v, "json_schema");
    const json* schema = outer != nullptr && outer->is_object() ? find(*outer, "schema") : nullptr;
    if (schema == nullptr) refuse("response_format.json_schema.schema", "is missing");
    set_grammar(GrammarKind::kJsonSchema,
                object(*schema, "response_format.json_schema.schema").dump(),
                "response_format.json_schema.schema");
  }

  void frames(const json& v) {
    list(v, "frames", kMaxFrames);
    for (std::size_t i = 0; i < v.size(); ++i) {
      const std::string where = at("frames", i);
      only(object(v[i], where), where, {"position", "rows", "same_block"});
      const json* position = find(v[i], "position");
      const json* rows = find(v[i], "rows");
      if (position == nullptr) refuse(where + ".position", "is missing");
      if (rows == nullptr) refuse(where + ".rows", "is missing");
      FrameBlock block;
      block.position =
          static_cast<int>(integer(*position, where + ".position", 0, model_.context - 1));
      if (const json* same = find(v[i], "same_block"); same != nullptr) {
        block.same_block = boolean(*same, where + ".same_block");
      }
      const auto bytes = base64_decode(text(*rows, where + ".rows"));
      if (!bytes) refuse(where + ".rows", "is not base64");
      const std::size_t row_bytes = sizeof(float) * static_cast<std::size_t>(model_.width);
      if (bytes->empty() || row_bytes == 0 || bytes->size() % row_bytes != 0) {
        refuse(where + ".rows",
               std::to_string(bytes->size()) + " bytes are no whole number of rows of " +
                   std::to_string(model_.width) + " float32");
      }
      block.rows.resize(bytes->size() / sizeof(float));
      std::memcpy(block.rows.data(), bytes->data(), bytes->size());
      if (!std::all_of(
              block.rows.begin(), block.rows.end(), [](float f) { return std::isfinite(f); })) {
        refuse(where + ".rows", "has a value that is not finite");
      }
      request_.frames.push_back(std::move(block));
    }
  }

  // What only the whole request can say.
  void finish() {
    if (has_ids_ == (chat_ != nullptr)) {
      if (openai()) refuse("messages", "is missing");
      refuse(has_ids_ ? "ids" : "messages",
             has_ids_ ? "messages and ids exclude each other" : "messages or ids are needed");
    }
    if (openai() && top_logprobs_ && !logprobs_) refuse("top_logprobs", "needs logprobs: true");
    if (openai() && logprobs_) request_.logprobs = top_logprobs_.value_or(0);
    if (has_ids_ && (!tools_.is_null() || thinking_)) {
      refuse(thinking_ ? "thinking" : "tools", "belongs to messages; ids are taken as they are");
    }
    if (request_.tool_choice == ToolChoice::kRequired && tool_names_.empty()) {
      refuse("tool_choice", "no tools are declared");
    }
    if (!request_.tool_name.empty() && !tool_names_.contains(request_.tool_name)) {
      refuse("tool_choice.function.name", "no such tool is declared");
    }
    if (request_.tool_choice == ToolChoice::kRequired &&
        request_.grammar_kind != GrammarKind::kNone) {
      refuse("grammar", "a required tool call excludes a grammar");
    }
    if (chat_ != nullptr) {
      chat_->tools = std::move(tools_);
      chat_->thinking = thinking_;
      request_.chat = std::move(chat_);
    }
  }

  TurnRoute route_;
  const ModelInfo& model_;
  DecodedTurn& out_;
  TurnRequest& request_;
  std::shared_ptr<ChatRequest> chat_;
  json tools_ = nullptr;
  std::set<std::string, std::less<>> tool_names_;
  bool has_ids_ = false;
  bool thinking_ = false;
  bool logprobs_ = false;
  std::optional<int> top_logprobs_;
};

json parsed(std::string_view body) {
  json value;
  const JsonProblem problem = read_json(body, value);
  if (problem.fault != JsonFault::kNone) refuse(TurnCode::kBadJson, "", problem.message);
  return value;
}

template <class F>
std::optional<TurnError> guarded(F&& decode) {
  try {
    decode();
    return std::nullopt;
  } catch (Refused& refused) {
    return std::move(refused.error);
  }
}

void list_ignored(const json& body,
                  std::initializer_list<const char*> known,
                  std::vector<std::string>& ignored) {
  for (const auto& [key, unused] : body.items()) {
    if (!is_one_of(key, known)) {
      ignored.push_back(printable(key));
    }
  }
}

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::optional<TurnError> decode_turn(std::string_view body,
                                     TurnRoute route,
                                     const ModelInfo& model,
                                     DecodedTurn& out) {
  return guarded([&] { TurnDecoder(route, model, out).decode(parsed(body)); });
}

std::optional<TurnError> decode_embed(std::string_view body,
                                      const ModelInfo& model,
                                      EmbedRequest& out) {
  return guarded([&] {
    const json v = parsed(body);
    object(v, "the request");
    only(v, "", {"input", "ids", "model"});
    const json* input = find(v, "input");
    const json* ids = find(v, "ids");
    if ((input == nullptr) == (ids == nullptr))
      refuse("input", "exactly one of input and ids is needed");
    const auto add = [&](const json& s, const std::string& field) {
      if (text(s, field).empty()) refuse(field, "is empty");
      out.inputs.push_back(s.get<std::string>());
    };
    const auto context = static_cast<std::size_t>(model.context);
    if (input != nullptr && input->is_string()) {
      add(*input, "input");
    } else if (input != nullptr) {
      list(*input, "input", kMaxInputs);
      if (input->empty()) refuse("input", "is empty");
      for (std::size_t i = 0; i < input->size(); ++i) add((*input)[i], at("input", i));
    } else if (ids->is_array() && !ids->empty() && (*ids)[0].is_array()) {
      list(*ids, "ids", kMaxInputs);
      for (std::size_t i = 0; i < ids->size(); ++i) {
        out.ids.push_back(token_ids((*ids)[i], at("ids", i), model, context));
      }
    } else {
      out.ids.push_back(token_ids(*ids, "ids", model, context));
    }
  });
}

std::optional<TurnError> decode_similarity(std::string_view body, Similarity& out) {
  return guarded([&] {
    const json v = parsed(body);
    object(v, "the request");
    only(v, "", {"a", "b"});
    const char* names[] = {"a", "b"};
    for (int i = 0; i < 2; ++i) {
      const std::string name = names[i];
      const json* side = find(v, names[i]);
      if (side == nullptr) refuse(name, "is missing");
      only(object(*side, name), name, {"space", "vector"});
      const json* space = find(*side, "space");
      const json* vector = find(*side, "vector");
      if (space == nullptr) refuse(name + ".space", "is missing");
      if (vector == nullptr) refuse(name + ".vector", "is missing");
      out.spaces[i] = text(*space, name + ".space");
      list(*vector, name + ".vector", kMaxSpaceDims);
      if (vector->empty()) refuse(name + ".vector", "is empty");
      for (std::size_t k = 0; k < vector->size(); ++k) {
        out.vectors[i].push_back(real((*vector)[k], at(name + ".vector", k), -1e30, 1e30));
      }
    }
  });
}

std::optional<TurnError> decode_abort(std::string_view body, std::string& id) {
  return guarded([&] {
    const json v = parsed(body);
    object(v, "the request");
    only(v, "", {"id"});
    const json* field = find(v, "id");
    if (field == nullptr) refuse("id", "is missing");
    id = text(*field, "id");
    if (id.empty() || id.size() > 128) refuse("id", "1..128 bytes are needed");
  });
}

std::optional<TurnError> decode_tokenize(std::string_view body, TokenizeRequest& out) {
  return guarded([&] {
    const json v = parsed(body);
    object(v, "the request");
    const json* content = find(v, "content");
    if (content == nullptr) refuse("content", "is missing");
    out.content = text(*content, "content");
    if (const json* special = find(v, "special"); special != nullptr)
      out.special = boolean(*special, "special");
    list_ignored(v, {"content", "special"}, out.ignored);
  });
}

std::optional<TurnError> decode_detokenize(std::string_view body,
                                           const ModelInfo& model,
                                           DetokenizeRequest& out) {
  return guarded([&] {
    const json v = parsed(body);
    object(v, "the request");
    const json* tokens = find(v, "tokens");
    if (tokens == nullptr) refuse("tokens", "is missing");
    if (!tokens->is_array() || !tokens->empty()) {
      out.tokens = token_ids(*tokens, "tokens", model, std::size_t{1} << 20);
    }
    list_ignored(v, {"tokens"}, out.ignored);
  });
}

std::optional<std::string> base64_decode(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t bits = 0;
    int padding = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const char c = text[i + k];
      const bool pad = c == '=' && i + 4 == text.size() && k >= 2;
      const std::size_t value = pad ? 0 : kBase64.find(c);
      if (value == std::string_view::npos || (padding > 0 && !pad)) return std::nullopt;
      padding += pad ? 1 : 0;
      bits = bits << 6 | static_cast<std::uint32_t>(value);
    }
    for (int k = 0; k < 3 - padding; ++k) out += static_cast<char>(bits >> (16 - 8 * k) & 0xFF);
  }
  return out;
}

std::string base64_encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k <= bytes.size() ? kBase64[bits >> (18 - 6 * k) & 0x3F] : '=';
    }
  }
  return out;
}

}  // namespace assay
