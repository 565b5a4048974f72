#include "engine/daemon/service.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/daemon/jobs.h"
#include "engine/daemon/request_decoder.h"
#include "engine/daemon/wire_frames.h"
#include "kernels/base/log.h"
#include "kernels/base/sha256.h"

namespace assay {

using nlohmann::json;

enum class RouteKind {
  kPage,
  kTurn,
  kCapture,
  kEmbed,
  kSimilarity,
  kAbort,
  kEvents,
  kMetrics,
  kHealth,
  kCapabilities,
  kProofs,
  kModels,
  kModel,
  kTokenize,
  kDetokenize,
};

struct Service::Route {
  const char* method;
  const char* path;  // one that ends in '/' begins many, the page's alone excepted
  RouteKind kind;
  bool open;  // without a key
  TurnRoute turn;
};

const Service::Route Service::kRoutes[] = {
    {"GET", "/", RouteKind::kPage, true, {}},
    {"POST", "/v1/chat", RouteKind::kTurn, false, TurnRoute::kChat},
    {"POST", "/v1/oneshot", RouteKind::kTurn, false, TurnRoute::kOneshot},
    {"POST", "/v1/chat/completions", RouteKind::kTurn, false, TurnRoute::kOpenAi},
    {"POST", "/v1/capture", RouteKind::kCapture, false, {}},
    {"POST", "/v1/embed", RouteKind::kEmbed, false, {}},
    {"POST", "/v1/embed/similarity", RouteKind::kSimilarity, false, {}},
    {"POST", "/v1/abort", RouteKind::kAbort, false, {}},
    {"GET", "/v1/events", RouteKind::kEvents, false, {}},
    {"GET", "/v1/metrics", RouteKind::kMetrics, false, {}},
    {"GET", "/v1/health", RouteKind::kHealth, true, {}},
    {"GET", "/v1/capabilities", RouteKind::kCapabilities, false, {}},
    {"GET", "/v1/proofs", RouteKind::kProofs, false, {}},
    {"GET", "/v1/models", RouteKind::kModels, false, {}},
    {"GET", "/v1/models/", RouteKind::kModel, false, {}},
    {"POST", "/tokenize", RouteKind::kTokenize, false, {}},
    {"POST", "/detokenize", RouteKind::kDetokenize, false, {}},
};

namespace {

bool path_fits(std::string_view route, std::string_view path) {
  return path == route || (route.size() > 1 && route.back() == '/' && path.starts_with(route));
}

// "a%20b" is "a b"; what is no escape stays.
std::string unescaped(std::string_view path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    unsigned byte = 0;
    const char* const digits = path.data() + i + 1;
    const bool escape = path[i] == '%' && i + 2 < path.size() &&
                        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += escape ? static_cast<char>(byte) : path[i];
    if (escape) i += 2;
  }
  return out;
}

TurnError no_route(std::string_view path) {
  if (path != "/v1/embeddings") return {.code = TurnCode::kNotFound, .message = "no such route"};
  return {.code = TurnCode::kNotFound,
          .message = "no such route: POST /v1/embed gives vectors, with the id of their space",
          .lost = {{"embeddings", "OpenAI's shape has no place for the id of a vector's space"}}};
}

bool method_fits(const char* route, const std::string& method) {
  return method == route || (method == "HEAD" && std::string_view(route) == "GET");
}

TurnError stopping_error() {
  return {.code = TurnCode::kNotReady, .message = "the server is stopping"};
}

// localhost or an address, with or without a port: no name that somebody else's DNS could turn towards this machine.
bool is_address(std::string_view host) {
  if (host.substr(0, 1) == "[") return true;
  host = host.substr(0, host.find(':'));
  return host == "localhost" || host.find_first_not_of("0123456789.") == std::string_view::npos;
}

// A page of another site must not reach a server on this machine through the visitor's browser: neither as itself, nor
// under a name of its own that was made to point here, where a GET carries no Origin.
bool foreign_origin(const HttpCall& call, bool has_key) {
  if (call.origin.empty()) return !has_key && !is_address(call.host);
  const std::size_t scheme = call.origin.find("://");
  if (scheme == std::string::npos || call.origin.substr(scheme + 3) != call.host) return true;
  return !has_key && !is_address(call.host);
}

// Who knows an id may abort its turn, so nobody must be able to guess one.
std::string random_id() {
  std::array<unsigned char, 16> bytes{};
  if (getentropy(bytes.data(), bytes.size()) != 0) throw std::runtime_error("no random bytes");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

json model_json(const ModelInfo& m, std::int64_t created_s) {
  return {{"id", m.name},
          {"object", "model"},
          {"created", created_s},
          {"owned_by", "assay"},
          {"context", m.context}};
}

HttpAnswer with_ignored(json answer, const std::vector<std::string>& ignored) {
  if (!ignored.empty()) answer["ignored"] = ignored;
  return json_answer(answer);
}

json finite_vector(const std::vector<float>& v) {
  json list = json::array();
  for (const float f : v) list.push_back(f);
  return list;
}

}  // namespace

Service::Service(TurnBackend& backend, ServiceSettings settings)
    : backend_(backend),
      settings_(std::move(settings)),
      key_digest_(settings_.api_key.empty() ? "" : sha256_hex(settings_.api_key)),
      started_s_(static_cast<std::int64_t>(std::time(nullptr))),
      scheduler_(settings_.queue, [this] {
        broken_.store(true);
        stop();
      }) {
  backend_.on_snapshot([this](std::string_view what, std::string_view detail) {
    events_.publish("snapshot", {{"id", nullptr}, {"what", what}, {"detail", detail}});
  });
}

Service::~Service() {
  backend_.on_snapshot(nullptr);
  events_.close();
}

bool Service::key_fits(std::string_view authorization) const {
  if (key_digest_.empty()) return true;
  constexpr std::string_view kBearer = "Bearer ";
  // The scheme's case says nothing (RFC 9110).
  const bool bearer =
      authorization.size() >= kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(), [](char a, char b) {
        return std::tolower(static_cast<unsigned char>(a)) ==
               std::tolower(static_cast<unsigned char>(b));
      });
  // Digests have one length and are compared to the end: the time says nothing about the key.
  const std::string given =
      sha256_hex(bearer ? authorization.substr(kBearer.size()) : authorization);
  unsigned differs = bearer ? 0 : 1;
  for (std::size_t i = 0; i < key_digest_.size(); ++i) {
    differs |= static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^
                                     static_cast<unsigned char>(key_digest_[i]));
  }
  return differs == 0;
}

std::optional<HttpAnswer> Service::refuse_head(const HttpCall& call) {
  const Route* route = nullptr;
  std::string allowed;
  std::string_view counted = "other";  // what the client made up is no label of a metric
  for (const Route& r : kRoutes) {
    if (!path_fits(r.path, call.path)) continue;
    counted = r.path;
    if (method_fits(r.method, call.method)) route = &r;
    allowed += (allowed.empty() ? "" : ", ") + std::string(r.method) +
               (std::string_view(r.method) == "GET" ? ", HEAD" : "");
  }
  const auto refuse = [&](const TurnError& e) {
    HttpAnswer answer = error_answer(e);
    if (e.code == TurnCode::kMethodNotAllowed)
      answer.headers.push_back({"Allow", allowed + ", OPTIONS"});
    if (e.code == TurnCode::kUnauthorized) answer.headers.push_back({"WWW-Authenticate", "Bearer"});
    metrics_.answered(counted, answer.status);
    return answer;
  };
  if (allowed.empty()) return refuse(no_route(call.path));
  if (call.method == "OPTIONS") {
    return HttpAnswer{.status = 204, .headers = {{"Allow", allowed + ", OPTIONS"}}};
  }
  if (route == nullptr) {
    return refuse({.code = TurnCode::kMethodNotAllowed, .message = "allowed here: " + allowed});
  }
  const bool own_name = call.origin.empty() && route->open;
  if (!own_name && foreign_origin(call, !key_digest_.empty())) {
    return refuse({.code = TurnCode::kForbidden,
                   .message = "requests from pages of another origin are refused, and without a "
                              "key those to a name: use "
                              "127.0.0.1 or localhost"});
  }
  if (!route->open && !key_fits(call.authorization)) {
    return refuse({.code = TurnCode::kUnauthorized,
                   .message = "a valid key is needed: Authorization: Bearer KEY"});
  }
  if (route->kind == RouteKind::kCapture) {
    const bool moe = backend_.info().moe;
    return refuse(
        {.code = moe ? TurnCode::kUnsupportedOnMoe : TurnCode::kUnsupported,
         .message = moe ? "episodes cannot be captured on a mixture-of-experts model (ADR-013); "
                          "nothing was stored"
                        : "capturing episodes is not built; nothing was stored",
         .lost = {
             {"capture",
              moe ? "ADR-013: an episode's rows carry no position on a mixture-of-experts model"
                  : "not built"}}});
  }
  if (stopping_ && call.method == "POST" && route->kind != RouteKind::kAbort)
    return refuse(stopping_error());
  return std::nullopt;
}

void Service::reply(const std::shared_ptr<Exchange>& exchange,
                    std::string_view route,
                    HttpAnswer answer) {
  metrics_.answered(route, answer.status);
  exchange->answer(std::move(answer));
}

void Service::submit(const std::shared_ptr<Job>& job,
                     const std::shared_ptr<Exchange>& exchange,
                     std::string_view route) {
  exchange->on_gone([this, id = job->id] { scheduler_.abort(id); });
  switch (scheduler_.submit(job)) {
    case Scheduler::Admission::kTaken:
      return;
    case Scheduler::Admission::kFull:
      reply(exchange,
            route,
            error_answer(
                {.code = TurnCode::kQueueFull,
                 .message = std::to_string(settings_.queue) + " requests are waiting; try again"}));
      return;
    case Scheduler::Admission::kStopping:
      reply(exchange, route, error_answer(stopping_error()));
      return;
  }
}

void Service::handle(HttpCall call, const std::shared_ptr<Exchange>& exchange) {
  const auto found = std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) {
    return path_fits(r.path, call.path) && method_fits(r.method, call.method);
  });
  if (found == std::end(kRoutes)) {  // refuse_head lets none through
    exchange->answer(error_answer(no_route(call.path)));
    return;
  }
  const Route& route = *found;
  const auto next_id = [](const char* kind) { return kind + random_id(); };
  const auto submit_answer = [&](const char* kind, auto prepare, auto run) {
    submit(std::make_shared<AnswerJob>(
               *this, next_id(kind), route.path, exchange, std::move(prepare), std::move(run)),
           exchange,
           route.path);
  };
  switch (route.kind) {
    case RouteKind::kPage:
      reply(exchange,
            route.path,
            {.type = "text/html; charset=utf-8",
             .body = std::string(kStatusPage),
             .headers = {{"Content-Security-Policy",
                          "default-src 'none'; style-src 'unsafe-inline'; script-src "
                          "'unsafe-inline'; connect-src 'self'; img-src data:"}}});
      return;
    case RouteKind::kTurn:
      submit(std::make_shared<TurnJob>(
                 *this, next_id("turn-"), route.turn, std::move(call.body), exchange),
             exchange,
             route.path);
      return;
    case RouteKind::kEmbed: {
      auto request = std::make_shared<EmbedRequest>();
      submit_answer(
          "embed-",
          [this, request, body = std::move(call.body)]() -> std::optional<HttpAnswer> {
            const auto error = decode_embed(body, backend_.info(), *request);
            return error ? std::optional(error_answer(*error)) : std::nullopt;
          },
          [this, request](const std::atomic<bool>& cancelled) {
            EmbedResult result;
            if (const auto error = backend_.embed(*request, result, cancelled))
              return error_answer(*error);
            json vectors = json::array();
            for (const auto& v : result.vectors) vectors.push_back(finite_vector(v));
            return json_answer({{"space", result.space},
                                {"vectors", std::move(vectors)},
                                {"usage", {{"prompt_tokens", result.prompt_tokens}}}});
          });
      return;
    }
    case RouteKind::kTokenize:
      submit_answer(
          "tokenize-",
          [this, body = std::move(call.body)]() -> std::optional<HttpAnswer> {
            TokenizeRequest request;
            if (const auto error = decode_tokenize(body, request)) return error_answer(*error);
            return with_ignored({{"tokens", backend_.tokenize(request.content, request.special)}},
                                request.ignored);
          },
          nullptr);
      return;
    case RouteKind::kDetokenize:
      submit_answer(
          "detokenize-",
          [this, body = std::move(call.body)]() -> std::optional<HttpAnswer> {
            DetokenizeRequest request;
            if (const auto error = decode_detokenize(body, backend_.info(), request))
              return error_answer(*error);
            std::string bytes;
            if (const auto error = backend_.detokenize(request.tokens, bytes))
              return error_answer(*error);
            return with_ignored({{"content", bytes}}, request.ignored);
          },
          nullptr);
      return;
    case RouteKind::kSimilarity:
      similarity(call, exchange);
      return;
    case RouteKind::kAbort:
      abort(call, exchange);
      return;
    case RouteKind::kEvents:
      metrics_.answered(route.path, 200);
      events_.subscribe(exchange);
      return;
    case RouteKind::kMetrics: {
      const HttpAnswer state = health();
      reply(exchange,
            route.path,
            {.type = "text/plain; version=0.0.4; charset=utf-8",
             .body = metrics_.text({.in_flight = scheduler_.in_flight(),
                                    .waiting = scheduler_.waiting(),
                                    .subscribers = events_.readers(),
                                    .heartbeat_ms = scheduler_.heartbeat_age_ms(),
                                    .healthy = state.status == 200},
                                   backend_.armed(),
                                   backend_.metrics())});
      return;
    }
    case RouteKind::kHealth:
      reply(exchange, route.path, health());
      return;
    case RouteKind::kCapabilities:
      reply(exchange, route.path, capabilities());
      return;
    case RouteKind::kProofs:
      reply(exchange,
            route.path,
            {.body = settings_.proofs.empty() ? "{\"ops\":{}}\n" : settings_.proofs});
      return;
    case RouteKind::kModels:
      reply(exchange, route.path, models());
      return;
    case RouteKind::kModel:
      reply(exchange, route.path, model(unescaped(call.path.substr(std::strlen(route.path)))));
      return;
    case RouteKind::kCapture:
      return;  // refuse_head answered
  }
}

void Service::abort(const HttpCall& call, const std::shared_ptr<Exchange>& exchange) {
  std::string id;
  if (const auto error = decode_abort(call.body, id)) {
    reply(exchange, call.path, error_answer(*error));
    return;
  }
  const AbortState state = scheduler_.abort(id);
  reply(exchange,
        call.path,
        json_answer({{"id", id},
                     {"state",
                      state == AbortState::kAborted    ? "aborted"
                      : state == AbortState::kFinished ? "finished"
                                                       : "unknown"}}));
}

void Service::similarity(const HttpCall& call, const std::shared_ptr<Exchange>& exchange) {
  Similarity pair;
  std::optional<TurnError> error = decode_similarity(call.body, pair);
  if (!error && pair.spaces[0] != pair.spaces[1]) {
    error = TurnError{.code = TurnCode::kConflict,
                      .message = "the vectors are of two spaces and cannot be compared",
                      .param = "b.space",
                      .lost = {{"similarity", "vectors of different spaces never compare"}}};
  }
  if (!error && pair.vectors[0].size() != pair.vectors[1].size()) {
    error = TurnError{.code = TurnCode::kBadRequest,
                      .message = "b.vector: has " + std::to_string(pair.vectors[1].size()) +
                                 " values, a.vector has " + std::to_string(pair.vectors[0].size()),
                      .param = "b.vector"};
  }
  if (error) {
    reply(exchange, call.path, error_answer(*error));
    return;
  }
  double dot = 0.0;
  double a = 0.0;
  double b = 0.0;
  for (std::size_t i = 0; i < pair.vectors[0].size(); ++i) {
    dot += pair.vectors[0][i] * pair.vectors[1][i];
    a += pair.vectors[0][i] * pair.vectors[0][i];
    b += pair.vectors[1][i] * pair.vectors[1][i];
  }
  const double norm = std::sqrt(a) * std::sqrt(b);
  if (!(norm > 0.0)) {
    reply(exchange,
          call.path,
          error_answer({.code = TurnCode::kBadRequest,
                        .message = "a vector of zeros has no direction",
                        .param = "vector"}));
    return;
  }
  reply(exchange, call.path, json_answer({{"space", pair.spaces[0]}, {"similarity", dot / norm}}));
}

HttpAnswer Service::health() const {
  const std::int64_t age = scheduler_.heartbeat_age_ms();
  const char* state = "ready";
  if (broken_) {
    state = "failed";
  } else if (stopping_) {
    state = "stopping";
  } else if (age > settings_.stall.count()) {
    state = "stalled";
  }
  return json_answer({{"state", state},
                      {"engine_heartbeat_ms", age},
                      {"in_flight", scheduler_.in_flight()},
                      {"queue", scheduler_.waiting()}},
                     std::string_view(state) == "ready" ? 200 : 503);
}

HttpAnswer Service::capabilities() const {
  json list = json::array();
  for (const Capability& c : backend_.capabilities()) {
    list.push_back({{"name", c.name},
                    {"supported", c.supported},
                    {"reason", c.reason.empty() ? json(nullptr) : json(c.reason)},
                    {"proof", c.proof.empty() ? json(nullptr) : json(c.proof)}});
  }
  const ModelInfo& m = backend_.info();
  return json_answer({{"model",
                       {{"name", m.name},
                        {"vocabulary", m.vocabulary},
                        {"context", m.context},
                        {"width", m.width},
                        {"moe", m.moe},
                        {"fingerprint", m.fingerprint}}},
                      {"eot_threshold", settings_.eot_threshold},
                      {"queue", settings_.queue},
                      {"capabilities", std::move(list)},
                      {"armed", armed_list(backend_.armed())}});
}

HttpAnswer Service::models() const {
  return json_answer(
      {{"object", "list"}, {"data", json::array({model_json(backend_.info(), started_s_)})}});
}

HttpAnswer Service::model(const std::string& id) const {
  const ModelInfo& m = backend_.info();
  if (id == m.name) return json_answer(model_json(m, started_s_));
  return error_answer(
      {.code = TurnCode::kNotFound,
       .message = "no model '" + id.substr(0, 80) + "' here, there is '" + m.name + "'",
       .param = "model"});
}

void Service::tick() {
  scheduler_.expire(settings_.queue_timeout);
  events_.sweep();
}

void Service::stop() {
  if (stopping_.exchange(true)) return;
  scheduler_.stop(stopping_error());
}

}  // namespace assay
