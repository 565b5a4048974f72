#include "engine/daemon/fake/fake_backend.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "engine/chat_template.h"
#include "engine/reply_text.h"

namespace assay {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr TokenId kTextToken = 258;  // a scripted token of several bytes

struct Script : PreparedTurn {
  std::vector<std::string> tokens;
  std::vector<TurnToolCall> calls;
  std::string reasoning;
  std::string fail;
  StopReason stop = StopReason::kStopToken;
  std::optional<double> margin = 13.1;
  double delay_ms = 0.0;
  double prefill_ms = 0.0;
  int chunks = 1;
  int fail_at = -1;
  int throw_at = -1;
};

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return out;
}

void read_script(const json& v, Script& s) {
  const int repeat = v.value("repeat", 1);
  for (int r = 0; r < repeat; ++r) {
    for (const json& t : v.value("tokens", json::array())) {
      s.tokens.push_back(t.is_object() ? from_hex(t.value("hex", "")) : t.get<std::string>());
    }
  }
  for (const json& c : v.value("calls", json::array())) {
    s.calls.push_back({.id = "call-" + std::to_string(s.calls.size()),
                       .name = c.value("name", ""),
                       .arguments = c.value("arguments", json::object()).dump()});
  }
  s.reasoning = v.value("reasoning", "");
  s.delay_ms = v.value("delay_ms", 0.0);
  s.prefill_ms = v.value("prefill_ms", 0.0);
  s.chunks = std::max(1, v.value("chunks", 1));
  s.fail = v.value("fail", "");
  s.fail_at = v.value("fail_at", 0);
  s.throw_at = v.value("throw_at", -1);
  if (const auto m = v.find("margin"); m != v.end()) {
    s.margin = m->is_number() ? std::optional(m->get<double>()) : std::nullopt;
  }
  if (!s.calls.empty()) s.stop = StopReason::kToolCalls;
}

void echo(const std::string& text, Script& s) {
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find(' ', at + 1);
    if (end == std::string::npos) end = text.size();
    s.tokens.push_back(text.substr(at, end - at));
    at = end;
  }
}

// False when cancelled meanwhile.
bool sleep_ms(double ms, const std::atomic<bool>& cancelled) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double, std::milli>(ms));
  while (!cancelled && Clock::now() < until) {
    std::this_thread::sleep_for(
        std::min<Clock::duration>(until - Clock::now(), std::chrono::milliseconds(2)));
  }
  return !cancelled;
}

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::optional<TurnCode> code_named(const std::string& name) {
  for (const TurnCode code : {TurnCode::kNumeric,
                              TurnCode::kOutOfMemory,
                              TurnCode::kGrammarDeadEnd,
                              TurnCode::kToolParse,
                              TurnCode::kEngine}) {
    if (name == turn_code_name(code)) return code;
  }
  return std::nullopt;
}

}  // namespace

FakeBackend::FakeBackend(int context)
    : info_{.name = "fake",
            .vocabulary = 300,
            .context = context,
            .width = 8,
            .moe = true,
            .fingerprint = "fake-1"} {}

std::vector<Capability> FakeBackend::capabilities() const {
  return {{"kairos", true, "", ""}, {"grammar", false, "the scripted backend has no grammar", ""}};
}
std::vector<ArmedOp> FakeBackend::armed() const {
  return {{"gemv_quant", "avx2", "script", "record 0123456789abcdef, in results/fake"}};
}
std::vector<BackendMetric> FakeBackend::metrics() const {
  const double turns = static_cast<double>(turns_.load());
  // One name that the daemon counts too, one family in two places, and a value that is none.
  return {{.name = "fake_turns_total",
           .help = "Turns run",
           .counter = true,
           .label = "kind",
           .label_value = "all",
           .value = turns},
          {.name = "prefix_hits_total", .help = "The daemon's own", .counter = true, .value = -1.0},
          {.name = "fake_turns_total",
           .help = "Turns run",
           .counter = true,
           .label = "kind",
           .label_value = "more",
           .value = std::nan("")}};
}

std::unique_ptr<PreparedTurn> FakeBackend::prepare(TurnRequest request, TurnError& error) {
  auto s = std::make_unique<Script>();
  if (request.grammar_kind != GrammarKind::kNone) {
    error = {.code = TurnCode::kUnsupported,
             .message = "grammar: not with a scripted backend",
             .param = "grammar",
             .lost = {{"grammar", "the scripted backend has no grammar"}}};
    return nullptr;
  }
  std::size_t tokens = request.ids.size();
  if (request.chat) {
    for (const ChatMessage& m : request.chat->messages) tokens += m.content.size() + 1;
    const std::string& last = request.chat->messages.back().content;
    const json script = json::parse(last, nullptr, false);
    if (script.is_object()) {
      read_script(script, *s);
      tokens = script.value("prompt_tokens", std::min<std::size_t>(tokens, 64));
    } else {
      echo(last, *s);
    }
  } else {
    for (const TokenId id : request.ids)
      s->tokens.push_back(id < 256 ? std::string(1, static_cast<char>(id)) : "");
  }
  if (tokens > static_cast<std::size_t>(info_.context)) {
    error = {.code = TurnCode::kContextExceeded,
             .message = "the prompt has " + std::to_string(tokens) + " tokens, the context holds " +
                        std::to_string(info_.context),
             .param = request.chat ? "messages" : "ids"};
    return nullptr;
  }
  s->prompt_tokens = static_cast<int>(tokens);
  s->request = std::move(request);
  return s;
}

void FakeBackend::run(PreparedTurn& turn, TurnSink& sink, const std::atomic<bool>& cancelled) {
  auto& s = static_cast<Script&>(turn);
  const TurnRequest& r = s.request;
  ++turns_;
  TurnDone done{.prompt_tokens = s.prompt_tokens};
  done.cold_reason = "no_session";
  if (!r.session.empty()) {
    int& held = sessions_[r.session];
    done.reused_tokens = std::min(held, s.prompt_tokens);
    done.cold_reason = held > 0 ? "" : "new_session";
    held = s.prompt_tokens;
  }
  sink.meta({.prompt_tokens = s.prompt_tokens, .reused_tokens = done.reused_tokens});
  const auto prefill_at = Clock::now();
  for (int chunk = 0; chunk < s.chunks; ++chunk) {
    sink.phase(TurnPhase::kPrefill, s.prompt_tokens * chunk / s.chunks, s.prompt_tokens);
    if (!sleep_ms(s.prefill_ms / s.chunks, cancelled)) return sink.aborted(done);
  }
  done.phases.prefill_ms = ms_since(prefill_at);
  done.phases.prefill_tokens = s.prompt_tokens - done.reused_tokens;

  const auto decode_at = Clock::now();
  ReplyText text(r.stop);
  StopReason stop = s.stop;
  const int room =
      std::min(r.max_tokens.value_or(info_.context), std::max(1, info_.context - s.prompt_tokens));
  const auto close = [&] {
    done.phases.decode_ms = ms_since(decode_at);
    done.phases.decode_tokens = done.completion_tokens;
  };
  if (!s.reasoning.empty()) sink.delta({.reasoning = s.reasoning});
  for (std::size_t i = 0; i < s.tokens.size() && r.eot_bias < 50.0; ++i) {
    if (done.completion_tokens == room) {
      stop = room == r.max_tokens ? StopReason::kLength : StopReason::kContext;
      break;
    }
    if (static_cast<int>(i) == s.throw_at) throw std::runtime_error("scripted: secret detail");
    if (!s.fail.empty() && static_cast<int>(i) == s.fail_at) {
      close();
      return sink.error({.code = code_named(s.fail).value_or(TurnCode::kEngine),
                         .message = "scripted failure in layer 3, decode",
                         .raw = s.fail == "tool_parse_error" ? "call:f{" : ""},
                        done);
    }
    if (!sleep_ms(s.delay_ms, cancelled)) {
      close();
      return sink.aborted(done);
    }
    ++done.completion_tokens;
    sink.phase(TurnPhase::kDecode, done.completion_tokens, room);
    TurnDelta delta{.text = text.push(s.tokens[i])};
    delta.ids = {s.tokens[i].size() == 1 ? static_cast<unsigned char>(s.tokens[i][0]) : kTextToken};
    if (r.byte_exact) delta.bytes = s.tokens[i];
    if (r.logprobs) {
      ChosenLogprob l{.chosen = {.id = delta.ids[0], .bytes = s.tokens[i], .logprob = -0.25}};
      for (int k = 0; k < *r.logprobs; ++k)
        l.top.push_back(
            {.id = k, .bytes = std::string(1, static_cast<char>('a' + k)), .logprob = -0.25 - k});
      delta.logprobs.push_back(std::move(l));
    }
    if (r.raw_logits > 0) {
      auto& row = delta.raw_logits.emplace_back();
      for (int k = 0; k < r.raw_logits; ++k)
        row.push_back({.id = k, .logit = 1.0F - static_cast<float>(k)});
    }
    sink.delta(std::move(delta));
    if (text.stopped()) {
      stop = StopReason::kStopString;
      break;
    }
  }
  if (std::string rest = text.finish(); !rest.empty()) sink.delta({.text = std::move(rest)});
  close();
  for (TurnToolCall& call : s.calls) sink.tool_call(std::move(call));
  sink.kairos({.eot_margin = s.margin, .stop = stop});
  sink.phase(TurnPhase::kPost, 0, 0);
  sink.done(done);
}

std::optional<TurnError> FakeBackend::embed(const EmbedRequest& request,
                                            EmbedResult& result,
                                            const std::atomic<bool>& /*cancelled*/) {
  result.space = "fake/bytes8";
  const auto add = [&](const auto& values) {
    std::vector<float> v(8, 0.0F);
    std::size_t at = 0;
    for (const auto value : values) v[at++ % v.size()] += static_cast<float>(value);
    result.prompt_tokens += static_cast<int>(at);
    result.vectors.push_back(std::move(v));
  };
  for (const std::string& text : request.inputs) add(text);
  for (const auto& ids : request.ids) add(ids);
  return std::nullopt;
}

std::vector<TokenId> FakeBackend::tokenize(std::string_view text, bool special) const {
  std::vector<TokenId> ids;
  if (special) ids.push_back(256);
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::optional<TurnError> FakeBackend::detokenize(const std::vector<TokenId>& ids,
                                                 std::string& bytes) const {
  for (const TokenId id : ids) {
    if (id < 256) bytes += static_cast<char>(id);
  }
  return std::nullopt;
}

}  // namespace assay
