// Where the daemon and the engine meet: a decoded request goes in, frames come out, on one engine thread.
//
//   server (I/O thread)    decodes and range-checks JSON into a TurnRequest
//   server (prepare thread) TurnBackend::prepare: renders, counts, compiles the grammar; refuses before anything queues
//   server (engine thread) TurnBackend::run, one turn at a time; the sink only posts, it never waits
//
// engine/reply_text.h makes deltas out of token bytes (stop strings, unfinished characters): every backend uses it.
//
// The server turns a TurnError into the HTTP status of its code, or into `event: error` once the stream has begun. It
// adds to the sink's frames what the wire format promises even when a backend stops short: `kairos` exactly once before
// the one terminal frame.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer.h"

namespace assay {

struct ChatRequest;  // engine/chat_template.h: messages, tools, thinking

// Why a request was refused or a turn ended badly. The name on the wire and the HTTP status are in turn.cpp.
enum class TurnCode {
  kBadRequest,    // bad_request 400: a field is missing, of the wrong type or out of range
  kBadJson,       // bad_json 400
  kUnknownField,  // unknown_field 400
  kContextExceeded,  // context_exceeded 400: prompt longer than the context; the message has both numbers
  kTokenOutOfRange,  // token_out_of_range 400: a token id that is not in the vocabulary
  kBadGrammar,  // bad_grammar 400: does not parse, left recursion, over the limits (64 KiB, 4,096 states)
  kBadTools,  // bad_tools 400: a tool declaration that the chat format or the grammar cannot carry
  kUnauthorized,      // unauthorized 401
  kForbidden,         // forbidden 403: a web page of another origin
  kNotFound,          // not_found 404
  kMethodNotAllowed,  // method_not_allowed 405
  kTimeout,           // timeout 408: the request did not arrive in time
  kConflict,  // conflict 409: session busy, another embedding space, a snapshot of another model
  kTooLarge,  // too_large 413
  kCannotWithModel,  // cannot_with_model 422: well formed, but not with this model (with `lost`)
  kQueueFull,        // queue_full 429, with Retry-After
  kHeaderTooLarge,   // header_too_large 431
  kNumeric,          // numeric_error 500: a non-finite logit; the message names layer and phase
  kOutOfMemory,      // out_of_memory 500: this turn alone
  kGrammarDeadEnd,   // grammar_dead_end 500: no token may follow
  kToolParse,        // tool_parse_error 500: with the raw text in `raw`
  kEngine,  // engine_error 500: anything else; the text of an exception goes to the log, never here
  kUnsupported,       // unsupported 501: not built, with `lost`
  kUnsupportedOnMoe,  // unsupported_on_moe 501
  kNotReady,  // not_ready 503, with Retry-After: loading, stopping, or waited too long in the queue
};
const char* turn_code_name(TurnCode code);
int turn_code_status(TurnCode code);

// A wire feature that was asked for and cannot be given, and why.
struct Loss {
  std::string name;
  std::string reason;
};

struct TurnError {
  TurnCode code = TurnCode::kEngine;
  std::string message = {};  // for the client: names the field and the numbers, no internals
  std::string param = {};    // the field at fault, "messages[2].role"; may be empty
  std::vector<Loss> lost = {};
  std::string raw = {};  // kToolParse: what the model wrote
};

struct TurnSampling {
  double temperature = 1.0;  // 0..10; 0 is greedy
  int top_k = 64;            // >= 0; 0 keeps all
  double top_p = 0.95;       // 0..1; 1 keeps all
  std::uint64_t seed = 0;
};

// Float rows put into the residual stream instead of embeddings.
struct FrameBlock {
  int position = 0;              // of the first row, in the prompt
  std::vector<float> rows = {};  // [rows][ModelInfo::width], finite
  bool same_block = false;       // the rows see one another whatever their order
};

enum class ToolChoice {
  kAuto,
  kNone,
  kRequired,  // some call; with `tool_name` that one
};

enum class GrammarKind {
  kNone,
  kRules,       // GBNF-like text
  kJsonSchema,  // a JSON schema's text
  kJson,        // any JSON object
};

// Every number is inside its wire range; what depends on the model (vocabulary, context, width) prepare() checks.
struct TurnRequest {
  std::string id = {};  // given by the server, "turn-17": in frames, events and the log line
  // Exactly one of the two.
  std::shared_ptr<const ChatRequest> chat = {};
  std::vector<TokenId> ids = {};

  std::optional<int> max_tokens = {};  // >= 1; absent: to the end of the context
  TurnSampling sampling = {};
  std::vector<std::string> stop = {};  // up to 8, none empty, valid UTF-8
  double eot_bias = 0.0;  // -100..100, added to the stop tokens' logits before sampling
  int raw_logits = 0;     // the k largest logits of every token; 0: none. k <= vocabulary
  std::optional<int> logprobs = {};  // 0..20 alternatives a token; absent: none at all
  bool byte_exact = false;           // deltas carry `bytes` too
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name = {};
  bool tool_grammar = true;  // the engine's grammar holds calls to their schema, where it can
  GrammarKind grammar_kind = GrammarKind::kNone;
  std::string grammar = {};
  std::string session = {};  // [A-Za-z0-9_-][A-Za-z0-9._-]{0,63}, or empty
  std::string prefix = {};   // likewise
  std::vector<FrameBlock> frames = {};
  bool oneshot = false;  // own scratch; the resident cache stays as it is
};

// What runs on the server's card, for /v1/capabilities, `meta` and the status page.
struct ArmedOp {
  std::string op;
  std::string variant;
  std::string why;    // "profile proven", "ASSAY_GEMV_QUANT", "stock"
  std::string proof;  // record id, or empty
};

struct Capability {
  std::string name;
  bool supported = false;
  std::string reason = {};  // why not, or a limit; may be empty when supported
  std::string proof = {};   // the test or record that shows it
};

struct ModelInfo {
  std::string name;
  int vocabulary = 0;
  int context = 0;
  int width = 0;  // floats a residual row
  bool moe = false;
  std::string fingerprint = {};  // of model, tokenizer, build and numerics
};

struct TurnMeta {
  int prompt_tokens = 0;
  int reused_tokens = 0;  // of them, already in the cache
};

struct TokenLogprob {
  TokenId id = -1;
  std::string bytes = {};
  double logprob = 0.0;
};
struct ChosenLogprob {
  TokenLogprob chosen = {};
  std::vector<TokenLogprob> top = {};  // most likely first
};
struct RawLogit {
  TokenId id = -1;
  float logit = 0.0F;
};

struct TurnDelta {
  std::string text = {};       // valid UTF-8, after stop strings were cut
  std::string reasoning = {};  // text of the thought channel
  std::vector<TokenId> ids = {};
  std::string bytes = {};                              // byte_exact: the tokens' bytes as they are
  std::vector<ChosenLogprob> logprobs = {};            // one a token of `ids`
  std::vector<std::vector<RawLogit>> raw_logits = {};  // likewise, largest first
};

struct TurnToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments = {};  // JSON text of an object
};

enum class StopReason {
  kStopToken,   // stop_token
  kStopString,  // stop_string
  kLength,      // length: max_tokens
  kContext,     // context: full
  kToolCalls,   // tool_calls
  kAborted,     // aborted
  kError,       // error
};
const char* stop_reason_name(StopReason reason);

struct TurnKairos {
  // Stop logit minus the best other logit at the last position, before bias and sampling. The server writes a value
  // that is not finite as null.
  std::optional<double> eot_margin = {};
  StopReason stop = StopReason::kStopToken;
};
enum class Verdict { kFinished, kSevered, kUnknown };
const char* verdict_name(Verdict verdict);
inline constexpr double kEotThreshold = -18.50;
// Severed below the threshold; unknown without a finite margin.
Verdict verdict_of(std::optional<double> eot_margin, double threshold = kEotThreshold);

struct PhaseTimes {
  double prefill_ms = 0.0;
  int prefill_tokens = 0;
  double recall_ms = 0.0;  // restoring a prefix or session
  int recall_tokens = 0;
  double decode_ms = 0.0;
  int decode_tokens = 0;
  double post_ms = 0.0;  // parsing calls, snapshots
};

// Tokens a second of the decode steps: the first token comes with the prefill, so n tokens are n - 1 steps. 0 without any.
inline double decode_rate(const PhaseTimes& t) {
  return t.decode_tokens > 1 && t.decode_ms > 0.0 ? 1000.0 * (t.decode_tokens - 1) / t.decode_ms
                                                  : 0.0;
}

struct TurnDone {
  int prompt_tokens = 0;
  int reused_tokens = 0;
  int completion_tokens = 0;
  PhaseTimes phases = {};
  std::string cold_reason = {};  // empty: prefix=hit
};

enum class TurnPhase { kRecall, kPrefill, kDecode, kPost };
const char* turn_phase_name(TurnPhase phase);

// The frames of one turn. Called from the engine thread only; never blocks, never throws. Nothing after a terminal call.
class TurnSink {
 public:
  virtual ~TurnSink() = default;
  // Once, when reuse is known and before the first delta.
  virtual void meta(const TurnMeta& meta) = 0;
  // At the start of a phase and after every chunk or step: also the engine's heartbeat.
  virtual void phase(TurnPhase phase, int tokens_done, int tokens_total) = 0;
  virtual void delta(TurnDelta delta) = 0;
  virtual void tool_call(TurnToolCall call) = 0;
  virtual void kairos(const TurnKairos& kairos) = 0;
  // A snapshot was used, refused or set aside; `what` is one word, `detail` a line for people.
  virtual void snapshot(std::string_view what, std::string_view detail) = 0;

  // Exactly one of these ends the turn. `done` carries the times for all three.
  virtual void done(const TurnDone& done) = 0;
  virtual void error(const TurnError& error, const TurnDone& so_far) = 0;
  virtual void aborted(const TurnDone& so_far) = 0;
};

// A request that prepare() accepted. The backend derives from it (compiled grammar, ids, rendered pieces).
struct PreparedTurn {
  TurnRequest request = {};
  int prompt_tokens = 0;
  std::vector<Loss> lost =
      {};  // what of the request runs, but not as asked: a tool's keyword that the grammar does not enforce
  virtual ~PreparedTurn() = default;
  PreparedTurn() = default;
  PreparedTurn(const PreparedTurn&) = delete;
  PreparedTurn& operator=(const PreparedTurn&) = delete;
};

struct EmbedRequest {
  std::vector<std::string> inputs = {};        // texts, or
  std::vector<std::vector<TokenId>> ids = {};  // token ids
};
struct EmbedResult {
  std::string space = {};  // names model, layer and pooling: vectors of two spaces never compare
  std::vector<std::vector<float>> vectors = {};  // one an input, finite
  int prompt_tokens = 0;
};

// A number for /v1/metrics, finite.
struct BackendMetric {
  std::string name;  // without the "assay_" in front
  std::string help;
  bool counter = false;    // else a gauge
  std::string label = {};  // label name, or empty
  std::string label_value = {};
  double value = 0.0;
};

// Threads: prepare, tokenize, detokenize, info, capabilities, armed and metrics may be called from other threads while
// run or embed is at work, and touch nothing that those change without a lock. run and embed come from one thread.
class TurnBackend {
 public:
  virtual ~TurnBackend() = default;

  virtual const ModelInfo& info() const = 0;
  virtual std::vector<Capability> capabilities() const = 0;
  virtual std::vector<ArmedOp> armed() const = 0;
  virtual std::vector<BackendMetric> metrics() const = 0;
  // Told what becomes of snapshots outside turns, as TurnSink::snapshot; from any thread, must not block. Null: nobody
  // listens any more, and no call is under way afterwards.
  virtual void on_snapshot(
      std::function<void(std::string_view what, std::string_view detail)> /*listener*/) {}

  // Everything that can be refused is refused here: an empty prompt (kBadRequest), ids outside the vocabulary, a prompt
  // longer than the context (one that fills it exactly yields one token, then `length`), raw_logits over the
  // vocabulary, frames, grammar, tools. Null: `error` says why. A tool with
  // `strict` is refused where its schema cannot be enforced in full.
  virtual std::unique_ptr<PreparedTurn> prepare(TurnRequest request, TurnError& error) = 0;
  // Runs the turn to its terminal frame. `cancelled` turns true once; the turn then ends in aborted() within one decode
  // step or one prefill chunk. Exceptions do not leave, except for sticky device errors: those end the process.
  virtual void run(PreparedTurn& turn, TurnSink& sink, const std::atomic<bool>& cancelled) = 0;

  // Nothing: the result is complete. kNotReady on cancel.
  virtual std::optional<TurnError> embed(const EmbedRequest& request,
                                         EmbedResult& result,
                                         const std::atomic<bool>& cancelled) = 0;
  virtual std::vector<TokenId> tokenize(std::string_view text, bool special) const = 0;
  // Bytes; kTokenOutOfRange for an id outside the vocabulary.
  virtual std::optional<TurnError> detokenize(const std::vector<TokenId>& ids,
                                              std::string& bytes) const = 0;
};

}  // namespace assay
