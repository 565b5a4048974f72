#include "engine/daemon/wire_frames.h"

#include <cmath>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

namespace assay {
namespace {

using nlohmann::json;

// One line, valid UTF-8 whatever the strings hold.
std::string dump(const json& v) { return v.dump(-1, ' ', false, json::error_handler_t::replace); }

json number(double v) { return std::isfinite(v) ? json(v) : json(nullptr); }

json losses(const std::vector<Loss>& lost) {
  json list = json::array();
  for (const Loss& l : lost) list.push_back({{"name", l.name}, {"reason", l.reason}});
  return list;
}

json usage_json(const TurnDone& d) {
  return {{"prompt_tokens", d.prompt_tokens},
          {"reused_tokens", d.reused_tokens},
          {"completion_tokens", d.completion_tokens},
          {"total_tokens", d.prompt_tokens + d.completion_tokens}};
}
json phases_json(const PhaseTimes& p) {
  return {{"prefill", number(p.prefill_ms)},
          {"recall", number(p.recall_ms)},
          {"decode", number(p.decode_ms)},
          {"post", number(p.post_ms)}};
}
json token_bytes(const std::string& bytes) {
  json list = json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}
json logprob_json(const TokenLogprob& t, bool with_id) {
  json v{{"token", t.bytes}, {"logprob", number(t.logprob)}, {"bytes", token_bytes(t.bytes)}};
  if (with_id) v["id"] = t.id;
  return v;
}
json logprobs_json(const std::vector<ChosenLogprob>& logprobs, bool with_id) {
  json list = json::array();
  for (const ChosenLogprob& l : logprobs) {
    json entry = logprob_json(l.chosen, with_id);
    json top = json::array();
    for (const TokenLogprob& t : l.top) top.push_back(logprob_json(t, with_id));
    entry["top_logprobs"] = std::move(top);
    list.push_back(std::move(entry));
  }
  return list;
}
json raw_logits_json(const std::vector<std::vector<RawLogit>>& rows) {
  json list = json::array();
  for (const auto& row : rows) {
    json entries = json::array();
    for (const RawLogit& r : row) entries.push_back({r.id, number(r.logit)});
    list.push_back(std::move(entries));
  }
  return list;
}
json kairos_json(const TurnKairos& k, double threshold) {
  const bool finite = k.eot_margin && std::isfinite(*k.eot_margin);
  return {{"eot_margin", finite ? json(*k.eot_margin) : json(nullptr)},
          {"verdict", verdict_name(verdict_of(k.eot_margin, threshold))},
          {"stop", stop_reason_name(k.stop)}};
}
json done_json(const TurnDone& d) {
  return {{"usage", usage_json(d)},
          {"phases_ms", phases_json(d.phases)},
          {"tokens_per_s", number(tokens_per_second(d))},
          {"prefix", d.cold_reason.empty() ? "hit" : "cold:" + d.cold_reason}};
}

class OwnEncoder : public TurnEncoder {
 public:
  explicit OwnEncoder(EncoderSettings s) : s_(std::move(s)) {}

 protected:
  json meta_json(const TurnMeta& m) const {
    return {{"id", s_.id},
            {"model", s_.model},
            {"prompt_tokens", m.prompt_tokens},
            {"reused_tokens", m.reused_tokens},
            {"armed", armed_list(s_.armed)},
            {"lost", losses(s_.lost)}};
  }
  static json call_json(const TurnToolCall& c) {
    return {{"id", c.id}, {"name", c.name}, {"arguments", c.arguments}};
  }
  EncoderSettings s_;
};

class OwnStream : public OwnEncoder {
 public:
  using OwnEncoder::OwnEncoder;
  std::string meta(const TurnMeta& m) override { return sse_frame("meta", meta_json(m)); }
  std::string delta(const TurnDelta& d) override {
    json v{{"text", d.text}, {"ids", d.ids}};
    if (!d.reasoning.empty()) v["reasoning"] = d.reasoning;
    if (s_.byte_exact) v["bytes"] = base64_encode(d.bytes);
    if (!d.logprobs.empty()) v["logprobs"] = logprobs_json(d.logprobs, true);
    if (!d.raw_logits.empty()) v["raw_logits"] = raw_logits_json(d.raw_logits);
    return sse_frame("delta", v);
  }
  std::string tool_call(const TurnToolCall& c) override {
    return sse_frame("tool_call", call_json(c));
  }
  std::string kairos(const TurnKairos& k) override {
    return sse_frame("kairos", kairos_json(k, s_.eot_threshold));
  }
  std::string done(const TurnDone& d) override { return sse_frame("done", done_json(d)); }
  std::string error(const TurnError& e) override { return sse_frame("error", error_json(e)); }
  std::string aborted(std::string_view reason) override {
    return sse_frame("aborted", {{"id", s_.id}, {"reason", reason}});
  }
};

// What both documents collect.
struct Collected {
  std::string text, reasoning, bytes;
  std::vector<TokenId> ids;
  json logprobs = json::array();
  json raw_logits = json::array();
  std::vector<TurnToolCall> calls;
  TurnKairos kairos;
  std::size_t held = 0;

  void add(const TurnDelta& d, bool with_id) {
    text += d.text;
    reasoning += d.reasoning;
    bytes += d.bytes;
    ids.insert(ids.end(), d.ids.begin(), d.ids.end());
    for (json& l : logprobs_json(d.logprobs, with_id)) logprobs.push_back(std::move(l));
    for (json& r : raw_logits_json(d.raw_logits)) raw_logits.push_back(std::move(r));
    held += d.text.size() + d.reasoning.size() + d.bytes.size() + d.ids.size() * sizeof(TokenId);
    // A JSON number or string costs a few dozen bytes; close enough for a bound.
    for (const auto& l : d.logprobs) held += 256 * (1 + l.top.size());
    for (const auto& r : d.raw_logits) held += 96 * r.size();
  }
};

class OwnDocument : public OwnEncoder {
 public:
  using OwnEncoder::OwnEncoder;
  std::string meta(const TurnMeta& m) override { return meta_ = meta_json(m), ""; }
  std::string delta(const TurnDelta& d) override { return all_.add(d, true), ""; }
  std::string tool_call(const TurnToolCall& c) override { return all_.calls.push_back(c), ""; }
  std::string kairos(const TurnKairos& k) override { return all_.kairos = k, ""; }
  std::string done(const TurnDone& d) override {
    json body = so_far("done");
    body.update(done_json(d));
    answer_ = json_answer(body);
    return {};
  }
  std::string error(const TurnError& e) override { return answer_ = error_answer(e), ""; }
  std::string aborted(std::string_view reason) override {
    json body = so_far("aborted");
    body["reason"] = reason;
    return answer_ = json_answer(body), "";
  }
  HttpAnswer document() override { return std::move(answer_); }
  std::size_t held_bytes() const override { return all_.held; }

 private:
  json so_far(const char* state) {
    json body = meta_.is_object() ? meta_ : json{{"id", s_.id}};
    body["state"] = state;
    body["text"] = all_.text;
    body["ids"] = all_.ids;
    if (!all_.reasoning.empty()) body["reasoning"] = all_.reasoning;
    if (s_.byte_exact) body["bytes"] = base64_encode(all_.bytes);
    if (!all_.logprobs.empty()) body["logprobs"] = all_.logprobs;
    if (!all_.raw_logits.empty()) body["raw_logits"] = all_.raw_logits;
    json calls = json::array();
    for (const TurnToolCall& c : all_.calls) calls.push_back(call_json(c));
    body["tool_calls"] = std::move(calls);
    body["kairos"] = kairos_json(all_.kairos, s_.eot_threshold);
    return body;
  }
  json meta_ = nullptr;
  Collected all_;
  HttpAnswer answer_;
};

const char* finish_reason(StopReason reason) {
  switch (reason) {
    case StopReason::kLength:
    case StopReason::kContext:
      return "length";
    case StopReason::kToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}
json openai_call(const TurnToolCall& c) {
  return {{"id", c.id},
          {"type", "function"},
          {"function", {{"name", c.name}, {"arguments", c.arguments}}}};
}

class OpenAiStream : public TurnEncoder {
 public:
  explicit OpenAiStream(EncoderSettings s) : s_(std::move(s)) {}
  std::string meta(const TurnMeta& /*meta*/) override {
    json v = chunk({{"role", "assistant"}, {"content", ""}}, nullptr);
    if (!s_.ignored.empty()) v["ignored"] = s_.ignored;
    if (!s_.lost.empty()) v["lost"] = losses(s_.lost);
    return frame(v);
  }
  std::string delta(const TurnDelta& d) override {
    json content = json::object();
    if (!d.text.empty() || d.reasoning.empty()) content["content"] = d.text;
    if (!d.reasoning.empty()) content["reasoning_content"] = d.reasoning;
    json v = chunk(std::move(content), nullptr);
    if (!d.logprobs.empty())
      v["choices"][0]["logprobs"] = {{"content", logprobs_json(d.logprobs, false)}};
    return frame(v);
  }
  std::string tool_call(const TurnToolCall& c) override {
    json call = openai_call(c);
    call["index"] = calls_++;
    return frame(chunk({{"tool_calls", json::array({std::move(call)})}}, nullptr));
  }
  std::string kairos(const TurnKairos& k) override { return kairos_ = k, ""; }
  std::string done(const TurnDone& d) override {
    json v = chunk(json::object(), finish_reason(kairos_.stop));
    v["kairos"] = kairos_json(kairos_, s_.eot_threshold);
    std::string out = frame(v);
    if (s_.include_usage) {
      json usage = chunk(json::object(), nullptr);
      usage["choices"] = json::array();
      usage["usage"] = usage_json(d);
      out += frame(usage);
    }
    return out + kEnd;
  }
  std::string error(const TurnError& e) override {
    return frame({{"error", error_json(e)["error"]}}) + kEnd;
  }
  std::string aborted(std::string_view reason) override {
    const TurnError e{.code = TurnCode::kConflict,
                      .message = "the turn was aborted: " + std::string(reason)};
    json v{{"error", error_json(e)["error"]}};
    return frame(v) + kEnd;
  }

 private:
  static constexpr const char* kEnd = "data: [DONE]\n\n";
  static std::string frame(const json& v) { return "data: " + dump(v) + "\n\n"; }
  json chunk(json delta, const json& reason) const {
    return {{"id", s_.id},
            {"object", "chat.completion.chunk"},
            {"created", s_.created_s},
            {"model", s_.model},
            {"choices",
             json::array({{{"index", 0},
                           {"delta", std::move(delta)},
                           {"logprobs", nullptr},
                           {"finish_reason", reason}}})}};
  }
  EncoderSettings s_;
  TurnKairos kairos_;
  int calls_ = 0;
};

class OpenAiDocument : public TurnEncoder {
 public:
  explicit OpenAiDocument(EncoderSettings s) : s_(std::move(s)) {}
  std::string meta(const TurnMeta& /*meta*/) override { return {}; }
  std::string delta(const TurnDelta& d) override { return all_.add(d, false), ""; }
  std::string tool_call(const TurnToolCall& c) override { return all_.calls.push_back(c), ""; }
  std::string kairos(const TurnKairos& k) override { return all_.kairos = k, ""; }
  std::string done(const TurnDone& d) override {
    json message{{"role", "assistant"}, {"content", all_.text}};
    if (!all_.reasoning.empty()) message["reasoning_content"] = all_.reasoning;
    if (!all_.calls.empty()) {
      json calls = json::array();
      for (const TurnToolCall& c : all_.calls) calls.push_back(openai_call(c));
      message["tool_calls"] = std::move(calls);
      if (all_.text.empty()) message["content"] = nullptr;
    }
    json choice{{"index", 0},
                {"message", std::move(message)},
                {"logprobs", nullptr},
                {"finish_reason", finish_reason(all_.kairos.stop)}};
    if (!all_.logprobs.empty()) choice["logprobs"] = {{"content", all_.logprobs}};
    json body{{"id", s_.id},
              {"object", "chat.completion"},
              {"created", s_.created_s},
              {"model", s_.model},
              {"choices", json::array({std::move(choice)})},
              {"usage", usage_json(d)},
              {"kairos", kairos_json(all_.kairos, s_.eot_threshold)}};
    if (!s_.ignored.empty()) body["ignored"] = s_.ignored;
    if (!s_.lost.empty()) body["lost"] = losses(s_.lost);
    answer_ = json_answer(body);
    return {};
  }
  std::string error(const TurnError& e) override { return answer_ = error_answer(e), ""; }
  std::string aborted(std::string_view reason) override {
    answer_ = error_answer(
        {.code = TurnCode::kConflict, .message = "the turn was aborted: " + std::string(reason)});
    return {};
  }
  HttpAnswer document() override { return std::move(answer_); }
  std::size_t held_bytes() const override { return all_.held; }

 private:
  EncoderSettings s_;
  Collected all_;
  HttpAnswer answer_;
};

}  // namespace

std::string sse_frame(std::string_view event, const json& data) {
  std::string out = "event: ";
  out += event;
  out += "\ndata: ";
  out += dump(data);
  out += "\n\n";
  return out;
}

json error_json(const TurnError& e) {
  json body{{"code", turn_code_name(e.code)},
            {"message", e.message},
            {"param", e.param.empty() ? json(nullptr) : json(e.param)},
            {"type", turn_code_status(e.code) < 500 ? "invalid_request_error" : "server_error"},
            {"lost", losses(e.lost)}};
  if (!e.raw.empty()) body["raw"] = e.raw;
  return {{"error", std::move(body)}};
}

HttpAnswer json_answer(const json& body, int status) {
  return {.status = status, .body = dump(body) + "\n"};
}

HttpAnswer error_answer(const TurnError& e) {
  HttpAnswer answer = json_answer(error_json(e), turn_code_status(e.code));
  if (e.code == TurnCode::kQueueFull || e.code == TurnCode::kNotReady)
    answer.headers.push_back({"Retry-After", "1"});
  return answer;
}

json armed_list(const std::vector<ArmedOp>& armed) {
  json list = json::array();
  for (const ArmedOp& a : armed) {
    list.push_back({{"op", a.op},
                    {"variant", a.variant},
                    {"why", a.why},
                    {"proof", a.proof.empty() ? json(nullptr) : json(a.proof)}});
  }
  return list;
}

double tokens_per_second(const TurnDone& d) { return decode_rate(d.phases); }

std::unique_ptr<TurnEncoder> make_encoder(EncoderSettings s) {
  if (s.openai && s.stream) return std::make_unique<OpenAiStream>(std::move(s));
  if (s.openai) return std::make_unique<OpenAiDocument>(std::move(s));
  if (s.stream) return std::make_unique<OwnStream>(std::move(s));
  return std::make_unique<OwnDocument>(std::move(s));
}

}  // namespace assay
