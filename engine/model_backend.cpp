#include "engine/model_backend.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <new>
#include <numeric>

#include <nlohmann/json.hpp>

#include "engine/chat_template.h"
#include "engine/grammar_schema.h"
#include "engine/reply_text.h"
#include "engine/sampler.h"
#include "engine/tool_call.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"

namespace assay {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kEmbeddingLayer = 5;
constexpr double kSliceMs = 100.0;  // of prefill between two looks at the cancel flag
constexpr int kFirstSlice = 32;
constexpr int kGrowth = 64;  // rows reserved beyond prompt and reply

std::size_t z(int n) { return static_cast<std::size_t>(n); }

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Thrown and caught here: a request's own fault, or a turn that cannot go on.
struct Refusal {
  TurnError error;
};
[[noreturn]] void refuse(TurnCode code,
                         std::string message,
                         std::string param = {},
                         std::vector<Loss> lost = {}) {
  throw Refusal{{.code = code,
                 .message = std::move(message),
                 .param = std::move(param),
                 .lost = std::move(lost)}};
}
// "tools[0].name: is missing": what stands before the first ": " is the field.
std::string field_of(const std::string& message) {
  const std::size_t colon = message.find(": ");
  const std::string field = message.substr(0, colon);
  return colon == std::string::npos || field.find(' ') != std::string::npos ? std::string() : field;
}

// Whether the tool asked to be held to its whole schema.
bool is_strict(const json& tool) {
  const json& f = tool.at("function");
  return f.contains("strict") && f.at("strict") == true;
}

bool has_tools(const TurnRequest& r) {
  return r.chat != nullptr && r.chat->tools.is_array() && !r.chat->tools.empty();
}

// The stop tokens' best logit minus the best of the others.
std::optional<double> eot_margin(const Tokenizer& tokenizer, std::span<const float> logits) {
  double stop = -std::numeric_limits<double>::infinity();
  double other = stop;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    double& best = tokenizer.is_stop(static_cast<TokenId>(i)) ? stop : other;
    best = std::max(best, static_cast<double>(logits[i]));
  }
  const double margin = stop - other;
  return std::isfinite(margin) ? std::optional(margin) : std::nullopt;
}

// The k largest logits, likelier first, ties by id.
std::vector<TokenId> largest(std::span<const float> logits, std::size_t k) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  k = std::min(k, ids.size());
  std::partial_sort(ids.begin(),
                    ids.begin() + static_cast<std::ptrdiff_t>(k),
                    ids.end(),
                    [&](TokenId a, TokenId b) {
                      return logits[z(a)] != logits[z(b)] ? logits[z(a)] > logits[z(b)] : a < b;
                    });
  ids.resize(k);
  return ids;
}

ChosenLogprob logprob_of(const Tokenizer& tokenizer,
                         std::span<const float> logits,
                         TokenId chosen,
                         int alternatives) {
  const double base = log_sum_exp(logits);
  const auto entry = [&](TokenId id) {
    return TokenLogprob{
        id, tokenizer.token_bytes(id, true), static_cast<double>(logits[z(id)]) - base};
  };
  ChosenLogprob out{.chosen = entry(chosen)};
  for (const TokenId id : largest(logits, z(alternatives))) out.top.push_back(entry(id));
  return out;
}

}  // namespace

struct ModelBackend::Turn : PreparedTurn {
  std::vector<TokenId> ids;
  std::optional<GrammarMatcher> grammar;
  std::optional<Sampler> sampler;
  int boundary =
      0;  // rows before it are the same in the next turn's prompt: a checkpoint is taken there
  int capture = 0;  // end of the part that a named prefix holds
  bool tools = false;
};

ModelBackend::ModelBackend(Model& model, const ModelBackendSettings& settings)
    : model_(model),
      settings_(settings),
      vocabulary_(std::make_shared<const GrammarVocabulary>(model.tokenizer())),
      embedding_layer_(std::min(kEmbeddingLayer, model.config().layers - 1)),
      session_(model, settings.prefix.slack),
      scratch_(model.config(), model.kv_type(), model.context(), model.space()),
      store_(model, settings.prefix),
      prompts_(model.tokenizer()) {
  const auto& c = model.config();
  info_ = {.name = c.name.empty() ? std::filesystem::path(model.path()).stem().string() : c.name,
           .vocabulary = c.vocab,
           .context = model.context(),
           .width = c.hidden,
           .moe = c.experts > 0,
           .fingerprint = store_.identity().digest()};
  embedding_space_ = store_.identity().model.substr(0, 16) + "/layer_out." +
                     std::to_string(embedding_layer_) + "/mean/" +
                     store_.identity().numerics.substr(0, 8);
}
ModelBackend::~ModelBackend() = default;

const char* ModelBackend::why_no_block() const {
  return model_.backend() == Backend::kHost
             ? nullptr
             : "on a card a block's rows have no place in the memory plan";
}

std::vector<Capability> ModelBackend::capabilities() const {
  const auto lacks = [&](const char* token) { return !model_.tokenizer().find(token).has_value(); };
  const bool calls = !lacks("<|tool_call>") && !lacks("<tool_call|>") && !lacks("<|\"|>");
  const std::string no_calls = calls ? "" : "the vocabulary has no tool call tokens";
  return {
      {"kairos", true, "", "model_backend.kairos"},
      {"eot_bias", true, "", "model_backend.kairos"},
      {"raw_logits", true, "", "model_backend.logits"},
      {"logprobs", true, "", "model_backend.logits"},
      {"byte_exact", true, "", "model_backend.bytes"},
      {"pretokenized_input", true, "", "model_backend.bytes"},
      {"stop_strings", true, "", "reply_text"},
      {"grammar",
       true,
       "GBNF rules and a JSON schema subset, at most 64 KiB and 4096 states",
       "grammar"},
      {"tools", calls, no_calls, "tool_call"},
      {"tool_grammar", calls, no_calls, "grammar"},
      {"thinking",
       !lacks("<|channel>"),
       lacks("<|channel>") ? "the vocabulary has no channel tokens" : "",
       "tool_call"},
      {"session", true, "", "snapshot"},
      {"prefix", true, "", "snapshot"},
      {"oneshot", true, "", "model_backend.oneshot"},
      {"embed", true, "space " + embedding_space_, "model_backend.embed"},
      {"frames", true, "causal rows; they are not kept in a session", "model_backend.frames"},
      {"frames.same_block",
       why_no_block() == nullptr,
       why_no_block() != nullptr
           ? why_no_block()
           : "a block has at most " + std::to_string(model_.chunk()) + " rows",
       "model_backend.frames"},
      {"chunk_pipelining",
       false,
       "a chunk is computed to its end before the next: the host has no commit to overlap",
       ""},
      {"capture", false, "activations of a mixture-of-experts model are not captured", ""},
  };
}

std::vector<ArmedOp> ModelBackend::armed() const {
  std::vector<ArmedOp> out;
  for (const auto& [op, choice] : model_.selection().choices) {
    const auto proof = settings_.proofs.find(op);
    const bool proven = choice.source == "profile" && proof != settings_.proofs.end();
    out.push_back({.op = op,
                   .variant = (choice.parity ? "parity:" : "") + choice.variant,
                   .why = choice.source.empty() ? "stock" : choice.source,
                   .proof = proven ? proof->second : ""});
  }
  return out;
}

std::vector<BackendMetric> ModelBackend::metrics() const {
  const std::lock_guard lock(mutex_);
  std::vector<BackendMetric> out;
  const auto add = [&](const char* name, const char* help, bool counter, double value) {
    out.push_back({.name = name, .help = help, .counter = counter, .value = value});
  };
  const auto total = [&](const char* key) {
    const auto it = totals_.find(key);
    return it == totals_.end() ? 0.0 : it->second;
  };
  add("prefill_tokens_total", "Prompt tokens computed", true, total("prefill_tokens"));
  add("prefill_seconds_total", "Time of prefill", true, total("prefill_ms") / 1000.0);
  add("decode_tokens_total", "Tokens generated", true, total("decode_tokens"));
  add("decode_seconds_total", "Time of decode", true, total("decode_ms") / 1000.0);
  add("decode_tokens_per_second", "Of the last turn", false, total("last_rate"));
  add("prefix_hits_total", "Turns that reused rows", true, static_cast<double>(count_.hits));
  add("prefix_misses_total", "Turns that started cold", true, static_cast<double>(count_.misses));
  add("prefix_reused_tokens_total",
      "Prompt tokens that were in the cache",
      true,
      static_cast<double>(count_.reused_tokens));
  add("prefix_evictions_total",
      "Sequences and prefixes forgotten for room",
      true,
      static_cast<double>(count_.evictions));
  add("prefix_resident_bytes",
      "Rows that stay resident",
      false,
      static_cast<double>(count_.resident_bytes));
  add("prefix_resident_sequences",
      "Sequences that stay resident",
      false,
      static_cast<double>(count_.resident_sequences));
  const SnapshotWriter::Count disk = store_.disk();
  add("snapshots_written_total",
      "Snapshots that are on disk",
      true,
      static_cast<double>(disk.written));
  add("snapshots_replaced_total",
      "Snapshots that a newer one overtook on the way to disk",
      true,
      static_cast<double>(disk.replaced));
  add("snapshots_failed_total",
      "Snapshots that could not be written; the log has the reason",
      true,
      static_cast<double>(disk.failed));
  add("snapshots_waiting_bytes",
      "Snapshots that wait for the disk",
      false,
      static_cast<double>(disk.waiting_bytes));
  add("prompt_turns_encoded_total",
      "Chat turns turned into tokens",
      true,
      static_cast<double>(prompts_.encoded_turns()));
  add("prompt_turns_kept_total",
      "Chat turns whose tokens were kept",
      true,
      static_cast<double>(prompts_.kept_turns()));
  for (const auto& [reason, n] : count_.cold) {
    out.push_back({.name = "prefix_cold_total",
                   .help = "Cold turns by reason",
                   .counter = true,
                   .label = "reason",
                   .label_value = reason,
                   .value = static_cast<double>(n)});
  }
  return out;
}

// ---- prepare ----

void ModelBackend::check_prompt(Turn& turn) const {
  const char* param = turn.request.chat ? "messages" : "ids";
  if (turn.ids.empty()) refuse(TurnCode::kBadRequest, "the prompt has no tokens", param);
  for (std::size_t i = 0; i < turn.ids.size(); ++i) {
    if (turn.ids[i] < 0 || turn.ids[i] >= info_.vocabulary) {
      refuse(TurnCode::kTokenOutOfRange,
             "token id " + std::to_string(turn.ids[i]) + " is not in 0.." +
                 std::to_string(info_.vocabulary - 1),
             "ids[" + std::to_string(i) + "]");
    }
  }
  if (turn.ids.size() > z(info_.context)) {
    refuse(TurnCode::kContextExceeded,
           "the prompt has " + std::to_string(turn.ids.size()) + " tokens, the context holds " +
               std::to_string(info_.context),
           param);
  }
  turn.prompt_tokens = static_cast<int>(turn.ids.size());

  // The reply's turn begins behind "<|turn>model\n"; what the template puts there for the reply is not in the history.
  const Tokenizer& t = model_.tokenizer();
  turn.boundary = turn.prompt_tokens;
  const auto opening = t.encode("<|turn>model\n", false, SpecialMode::kAll);
  const auto last = std::find(turn.ids.rbegin(), turn.ids.rend(), t.turn_begin());
  if (last != turn.ids.rend()) {
    const auto at = last.base() - 1;
    if (static_cast<std::size_t>(turn.ids.end() - at) >= opening.size() &&
        std::equal(opening.begin(), opening.end(), at)) {
      turn.boundary = static_cast<int>(at - turn.ids.begin()) + static_cast<int>(opening.size());
    }
  }
  // A named prefix is the system turn (persona, tools), with the newline behind it.
  turn.capture = turn.boundary;
  const auto system = t.encode("<|turn>system\n", false, SpecialMode::kAll);
  const auto first = std::find(turn.ids.begin(), turn.ids.end(), t.turn_begin());
  if (static_cast<std::size_t>(turn.ids.end() - first) >= system.size() &&
      std::equal(system.begin(), system.end(), first)) {
    const auto end = std::find(first, turn.ids.end(), t.turn_end());
    if (end != turn.ids.end())
      turn.capture = std::min(turn.boundary, static_cast<int>(end - turn.ids.begin()) + 2);
  }
}

void ModelBackend::check_frames(const TurnRequest& r) const {
  for (std::size_t i = 0; i < r.frames.size(); ++i) {
    const FrameBlock& f = r.frames[i];
    const std::string param = "frames[" + std::to_string(i) + "]";
    if (f.same_block && why_no_block() != nullptr) {
      refuse(TurnCode::kUnsupported,
             param + ".same_block: not with this engine",
             param + ".same_block",
             {{"frames.same_block", why_no_block()}});
    }
    if (f.rows.empty() || f.rows.size() % z(info_.width) != 0) {
      refuse(TurnCode::kBadRequest,
             param + ".rows: whole rows of " + std::to_string(info_.width) + " floats are needed",
             param + ".rows");
    }
    if (!std::all_of(f.rows.begin(), f.rows.end(), [](float v) { return std::isfinite(v); })) {
      refuse(TurnCode::kBadRequest, param + ".rows: a number is not finite", param + ".rows");
    }
    const std::size_t rows = f.rows.size() / z(info_.width);
    if (f.same_block && rows > z(model_.chunk())) {
      refuse(TurnCode::kCannotWithModel,
             param + ".rows: " + std::to_string(rows) +
                 " rows, a block whose rows see one another has at most " +
                 std::to_string(model_.chunk()),
             param + ".rows",
             {{"frames.same_block", "larger than a chunk"}});
    }
    for (const FrameBlock& other : r.frames) {
      if (&other != &f && other.position < f.position + static_cast<int>(rows) &&
          f.position < other.position + static_cast<int>(other.rows.size() / z(info_.width))) {
        refuse(TurnCode::kBadRequest, param + ": lies over another block", param + ".position");
      }
    }
  }
}

std::shared_ptr<const Grammar> ModelBackend::grammar_of(const TurnRequest& r,
                                                        std::vector<Loss>& lost) const {
  const bool tools = has_tools(r) && r.tool_choice != ToolChoice::kNone;
  if (r.grammar_kind != GrammarKind::kNone) {
    if (tools) {
      refuse(TurnCode::kUnsupported,
             "grammar: not together with tools",
             "grammar",
             {{"grammar",
               "a reply follows one grammar: the tools' or the request's (tool_choice none)"}});
    }
    try {
      Grammar g = [&] {
        if (r.grammar_kind == GrammarKind::kRules) return Grammar::parse(r.grammar);
        if (r.grammar_kind == GrammarKind::kJson)
          return json_grammar(json::object({{"type", "object"}}));
        if (r.grammar.size() > kMaxGrammarBytes)
          throw InputError("schema: larger than " + std::to_string(kMaxGrammarBytes) + " bytes");
        const json schema = json::parse(r.grammar, nullptr, false);
        if (schema.is_discarded()) throw InputError("schema: no JSON");
        return json_grammar(schema);
      }();
      if (r.chat != nullptr && r.chat->thinking) g = allow_thought(std::move(g));
      return std::make_shared<const Grammar>(std::move(g));
    } catch (const InputError& e) {
      refuse(TurnCode::kBadGrammar, e.what(), "grammar");
    }
  }
  if (!has_tools(r)) {
    if (r.tool_choice == ToolChoice::kRequired) {
      refuse(TurnCode::kBadTools,
             "tool_choice: a call is required but no tool is given",
             "tool_choice");
    }
    return nullptr;
  }
  const ToolUse use = r.tool_choice == ToolChoice::kNone       ? ToolUse::kNone
                      : r.tool_choice == ToolChoice::kRequired ? ToolUse::kRequired
                                                               : ToolUse::kAuto;
  if (!r.tool_grammar && use == ToolUse::kAuto) return nullptr;
  try {
    SchemaGrammar made = tool_grammar(r.chat->tools, {.use = use, .only = r.tool_name});
    for (const SchemaNote& note : made.notes) {
      lost.push_back({note.path, note.text});
      if (is_strict(r.chat->tools[note.tool]))
        refuse(TurnCode::kBadTools,
               note.path + ": " + note.text + ", and the tool is strict",
               note.path,
               {lost.back()});
    }
    return std::make_shared<const Grammar>(std::move(made.grammar));
  } catch (const InputError& e) {
    refuse(TurnCode::kBadTools, e.what(), field_of(e.what()));
  }
}

std::unique_ptr<PreparedTurn> ModelBackend::prepare(TurnRequest request, TurnError& error) {
  try {
    auto turn = std::make_unique<Turn>();
    turn->request = std::move(request);
    const TurnRequest& r = turn->request;
    if (r.raw_logits > info_.vocabulary) {
      refuse(TurnCode::kBadRequest,
             "raw_logits: " + std::to_string(r.raw_logits) + " is above the vocabulary of " +
                 std::to_string(info_.vocabulary),
             "raw_logits");
    }
    if (settings_.warm_gate && !r.prefix.empty() && r.max_tokens != 1) {
      const std::lock_guard lock(mutex_);
      if (!warm_.contains(r.prefix)) {
        refuse(TurnCode::kNotReady,
               "prefix: not warm yet; a turn with max_tokens 1 captures it",
               "prefix");
      }
    }
    try {
      turn->sampler.emplace(SamplerSettings{.temperature = r.sampling.temperature,
                                            .top_k = r.sampling.top_k,
                                            .top_p = r.sampling.top_p,
                                            .seed = r.sampling.seed});
    } catch (const UserError& e) {
      refuse(TurnCode::kBadRequest, e.what());
    }
    check_frames(r);
    if (r.chat != nullptr) {
      try {
        const std::lock_guard lock(mutex_);
        turn->ids = prompts_.encode(*r.chat);
      } catch (const InputError& e) {
        const std::string message = e.what();
        refuse(message.starts_with("tools") ? TurnCode::kBadTools : TurnCode::kBadRequest,
               message,
               field_of(message));
      }
      turn->tools = has_tools(r);
    } else {
      turn->ids = r.ids;
    }
    check_prompt(*turn);
    for (std::size_t i = 0; i < r.frames.size(); ++i) {
      const FrameBlock& f = r.frames[i];
      if (f.position < 0 || z(f.position) + f.rows.size() / z(info_.width) > turn->ids.size()) {
        const std::string param = "frames[" + std::to_string(i) + "].position";
        refuse(TurnCode::kBadRequest,
               param + ": the rows do not lie in the prompt of " +
                   std::to_string(turn->ids.size()) + " tokens",
               param);
      }
    }
    if (auto grammar = grammar_of(r, turn->lost)) {
      try {
        turn->grammar.emplace(std::move(grammar), vocabulary_);
      } catch (const InputError& e) {
        refuse(TurnCode::kCannotWithModel, e.what(), "grammar", {{"grammar", e.what()}});
      }
    }
    return turn;
  } catch (const Refusal& r) {
    error = r.error;
  } catch (const std::bad_alloc&) {
    error = {.code = TurnCode::kOutOfMemory, .message = "out of memory"};
  } catch (const std::exception& e) {
    ASSAY_LOG(error, "prepare: {}", e.what());
    error = {.code = TurnCode::kEngine, .message = "the request could not be prepared"};
  }
  return nullptr;
}

// ---- run ----

// One turn from open to its terminal frame.
class ModelBackend::Run {
 public:
  Run(ModelBackend& backend, Turn& turn, TurnSink& sink, const std::atomic<bool>& cancelled)
      : b_(backend),
        turn_(turn),
        request_(turn.request),
        sink_(sink),
        cancelled_(cancelled),
        tokenizer_(backend.model_.tokenizer()),
        session_(backend.session_),
        text_(turn.request.stop),
        all_(turn.ids),
        channel_(tokenizer_.find("<|channel>").value_or(-1)),
        channel_end_(tokenizer_.find("<channel|>").value_or(-1)),
        call_(turn.tools ? tokenizer_.find("<|tool_call>").value_or(-1) : -1),
        call_end_(tokenizer_.find("<tool_call|>").value_or(-1)) {
    done_.prompt_tokens = turn.prompt_tokens;
  }

  void run() {
    std::optional<TurnError> failed;
    try {
      open();
      const int limit = std::min(request_.max_tokens.value_or(std::numeric_limits<int>::max()),
                                 b_.info_.context - turn_.prompt_tokens + 1);
      if (prefill(limit)) decode(limit);
    } catch (const Refusal& r) {
      failed = r.error;
    } catch (const std::bad_alloc&) {
      failed = {.code = TurnCode::kOutOfMemory, .message = "out of memory"};
    } catch (const std::exception& e) {
      ASSAY_LOG(error, "{}: {}", request_.id, e.what());
      failed = {.code = TurnCode::kEngine, .message = "the turn failed"};
    }
    finish(failed);
  }

 private:
  bool kept() const { return !request_.oneshot && request_.frames.empty(); }
  std::span<const TokenId> fed() const { return std::span(all_).first(z(session_.position())); }

  void open() {
    const auto started = Clock::now();
    sink_.phase(TurnPhase::kRecall, 0, 0);
    if (kept()) {
      const auto opened = b_.store_.open(session_, request_.session, request_.prefix, turn_.ids);
      opened_ = true;
      done_.reused_tokens = opened.reused;
      done_.cold_reason = opened.cold_reason;
    } else {
      session_.exchange(b_.scratch_);
      session_.reset();
      opened_ = true;
      done_.cold_reason = request_.oneshot ? "oneshot" : "frames";
      if (!request_.frames.empty())
        session_.set_hooks({.frame = [this](int p) { return frame(p); }});
    }
    events();
    done_.phases.recall_ms = ms_since(started);
    done_.phases.recall_tokens = done_.reused_tokens;
    sink_.meta({.prompt_tokens = turn_.prompt_tokens, .reused_tokens = done_.reused_tokens});
  }
  void events() {
    for (const auto& e : b_.store_.take_events()) sink_.snapshot(e.what, e.detail);
  }
  const float* frame(int position) const {
    const auto width = z(b_.info_.width);
    for (const FrameBlock& f : request_.frames) {
      if (position < f.position) continue;
      const std::size_t at = z(position - f.position) * width;
      if (at < f.rows.size()) return f.rows.data() + at;
    }
    return nullptr;
  }

  // The slice [at, end) of a prompt with blocks whose rows see one another: cut so that it is one of them, whole (true), or
  // has none of them.
  bool block_from(int at, int& end) const {
    for (const FrameBlock& f : request_.frames) {
      if (!f.same_block) continue;
      if (f.position == at) {
        end = at + static_cast<int>(f.rows.size() / z(b_.info_.width));
        return true;
      }
      if (f.position > at) end = std::min(end, f.position);
    }
    return false;
  }

  // Feeds the prompt in slices, short enough that a cancel is noticed soon. False when cancelled.
  bool prefill(int limit) {
    const auto started = Clock::now();
    const int total = turn_.prompt_tokens;
    // Memory for the whole turn before the first kernel, so that none of them waits for it.
    session_.sequence().reserve(
        static_cast<int>(std::min<long>(long{total} + limit + kGrowth, b_.info_.context)));
    const auto close = [&] {
      done_.phases.prefill_ms = ms_since(started);
      done_.phases.prefill_tokens = session_.position() - done_.reused_tokens;
    };
    const auto wants = [&](int position) { return position == total - 1; };
    const auto take = [&](int, std::span<const float> row) { logits_ = row; };
    int slice = kFirstSlice;
    while (session_.position() < total) {
      const int at = session_.position();
      sink_.phase(TurnPhase::kPrefill, at - done_.reused_tokens, total - done_.reused_tokens);
      if (cancelled_) {
        close();
        return false;
      }
      int end = std::min(total, at + slice);
      for (const int stop : {turn_.boundary, turn_.capture}) {
        if (kept() && at < stop && stop < end) end = stop;
      }
      const bool block = block_from(at, end);
      if (block)
        session_.set_hooks({.frame = [this](int p) { return frame(p); }, .same_block = true});
      const auto slice_started = Clock::now();
      session_.feed(std::span<const TokenId>(turn_.ids).subspan(z(at), z(end - at)), wants, take);
      if (block) session_.set_hooks({.frame = [this](int p) { return frame(p); }});
      const double each = ms_since(slice_started) / (end - at);
      slice = static_cast<int>(
          std::clamp(kSliceMs / std::max(each, 1e-6), 8.0, static_cast<double>(b_.model_.chunk())));
      if (!kept()) continue;
      if (end == turn_.boundary) b_.store_.checkpoint(session_);
      if (end == turn_.capture && b_.store_.wants_capture()) {
        b_.store_.capture(request_.prefix, session_, fed());
        events();
      }
    }
    close();
    sink_.phase(TurnPhase::kPrefill, total - done_.reused_tokens, total - done_.reused_tokens);
    return true;
  }

  void decode(int limit) {
    const auto started = Clock::now();
    const auto close = [&] {
      done_.phases.decode_ms = ms_since(started);
      done_.phases.decode_tokens = done_.completion_tokens;
    };
    try {
      loop(limit);
    } catch (...) {
      close();
      throw;
    }
    close();
  }

  void loop(int limit) {
    for (;;) {
      if (cancelled_) return;
      check_finite();
      margin_ = eot_margin(tokenizer_, logits_);
      const TokenId id = choose(limit - done_.completion_tokens);
      ++done_.completion_tokens;
      all_.push_back(id);
      sink_.phase(TurnPhase::kDecode, done_.completion_tokens, limit);
      const bool stop = tokenizer_.is_stop(id);
      emit(id, stop);
      if (stop) {
        stop_ = calls_ > 0 ? StopReason::kToolCalls : StopReason::kStopToken;
        break;
      }
      if (text_.stopped()) {
        stop_ = StopReason::kStopString;
        break;
      }
      if (done_.completion_tokens == limit) {
        const bool asked = request_.max_tokens && limit == *request_.max_tokens;
        // A prompt that fills the context has its one token: a length that was reached, not a reply that was cut.
        stop_ = asked || turn_.prompt_tokens == b_.info_.context ? StopReason::kLength
                                                                 : StopReason::kContext;
        break;
      }
      if (cancelled_) return;
      logits_ = session_.feed({&all_.back(), 1});
    }
    complete_ = true;
    drain();
  }

  void check_finite() {
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      // !(x < inf) catches NaN too.
      if (!(logits_[i] < std::numeric_limits<float>::infinity())) numeric_error(i);
    }
  }
  // The last token once more, to say which layer first gave a number that is none.
  [[noreturn]] void numeric_error(std::size_t logit) {
    spoiled_ = true;
    const char* phase = done_.completion_tokens == 0 ? "prefill" : "decode";
    const bool nan = std::isnan(logits_[logit]);
    const int last = session_.position() - 1;
    std::string where = "the head";
    session_.sequence().cut(last);
    int bad = -1;
    session_.set_hooks({.frame = [this](int p) { return frame(p); },
                        .stage =
                            [&](const StageChunk& c) {
                              if (bad >= 0 || std::string_view(c.name) != "layer_out") return;
                              for (int k = 0; k < c.tokens * c.width; ++k) {
                                if (!std::isfinite(c.data[k])) bad = c.layer;
                              }
                            }});
    session_.feed({&all_[z(last)], 1});
    session_.set_hooks({});
    if (bad >= 0) where = "layer " + std::to_string(bad);
    refuse(TurnCode::kNumeric,
           "logit " + std::to_string(logit) + " is " + (nan ? "NaN" : "infinite") + " in " + phase +
               " at position " + std::to_string(last) + ", first in " + where);
  }

  TokenId choose(int remaining) {
    work_.assign(logits_.begin(), logits_.end());
    for (const TokenId id : tokenizer_.stop_ids())
      work_[z(id)] += static_cast<float>(request_.eot_bias);
    if (turn_.grammar) {
      const TokenMask* mask = nullptr;
      try {
        mask = &turn_.grammar->mask(remaining);
      } catch (const InputError& e) {
        refuse(TurnCode::kGrammarDeadEnd, e.what(), "grammar");
      }
      if (mask->none())
        refuse(TurnCode::kGrammarDeadEnd, "the grammar allows no token here", "grammar");
      for (std::size_t i = 0; i < work_.size(); ++i) {
        if (!mask->allows(static_cast<TokenId>(i)))
          work_[i] = -std::numeric_limits<float>::infinity();
      }
    }
    if (std::none_of(work_.begin(), work_.end(), [](float v) { return std::isfinite(v); })) {
      refuse(turn_.grammar ? TurnCode::kGrammarDeadEnd : TurnCode::kNumeric,
             "every token that may follow has the logit -infinity");
    }
    const TokenId id = turn_.sampler->sample(work_);
    if (turn_.grammar && !tokenizer_.is_stop(id) && !turn_.grammar->accept(id)) {
      refuse(TurnCode::kEngine, "the grammar's mask let a token through that it does not take");
    }
    return id;
  }

  // A token's frame: text, thought or part of a call.
  void emit(TokenId id, bool stop) {
    TurnDelta delta;
    delta.ids.push_back(id);
    if (request_.byte_exact) delta.bytes = tokenizer_.token_bytes(id);
    if (request_.logprobs)
      delta.logprobs.push_back(logprob_of(tokenizer_, logits_, id, *request_.logprobs));
    if (request_.raw_logits > 0) {
      auto& row = delta.raw_logits.emplace_back();
      for (const TokenId k : largest(logits_, z(request_.raw_logits)))
        row.push_back({k, logits_[z(k)]});
    }
    std::string raw_call;
    if (stop) {
      // Nothing to print.
    } else if (in_call_) {
      raw_ += tokenizer_.token_bytes(id, true);
      if (id == call_end_) {
        in_call_ = false;
        raw_call = std::exchange(raw_, {});
      }
    } else if (id == call_) {
      in_call_ = true;
      raw_ = tokenizer_.token_bytes(id, true);
    } else if (id == call_end_ && turn_.tools) {
      raw_call = tokenizer_.token_bytes(id, true);
    } else if (id == channel_) {
      delta.reasoning = end_thought();
      in_thought_ = true;
      label_open_ = true;
    } else if (id == channel_end_) {
      delta.reasoning = end_thought();
    } else if (in_thought_) {
      delta.reasoning = thought(tokenizer_.token_bytes(id));
    } else {
      delta.text = text_.push(tokenizer_.token_bytes(id));
    }
    sink_.delta(std::move(delta));
    if (!raw_call.empty()) finish_call(raw_call);
  }

  // A thought begins with its channel's name, which is not part of it.
  std::string thought(const std::string& bytes) {
    constexpr std::string_view kLabel = "thought\n";
    if (!label_open_) return thought_utf8_.push(bytes);
    label_ += bytes;
    if (label_.size() < kLabel.size() && kLabel.starts_with(label_)) return {};
    label_open_ = false;
    std::string rest = std::exchange(label_, {});
    for (const std::string_view label : {kLabel, kLabel.substr(0, kLabel.size() - 1)}) {
      if (rest.starts_with(label)) {
        rest.erase(0, label.size());
        break;
      }
    }
    return thought_utf8_.push(rest);
  }
  std::string end_thought() {
    std::string out;
    if (in_thought_ && label_open_ && label_ != "thought") out = thought_utf8_.push(label_);
    out += thought_utf8_.finish();
    thought_utf8_ = {};
    label_.clear();
    in_thought_ = false;
    label_open_ = false;
    return out;
  }

  void finish_call(const std::string& raw) {
    ParsedReply parsed = parse_reply(raw);
    if (!parsed.error.empty() || parsed.tool_calls.size() != 1) {
      tool_error(parsed.error.empty() ? "no call" : parsed.error, raw);
    }
    const ToolCall& call = parsed.tool_calls[0];
    sink_.tool_call(
        {.id = "call-" + request_.id + "-" + std::to_string(calls_++),
         .name = call.name,
         .arguments = call.arguments.dump(-1, ' ', false, json::error_handler_t::replace)});
  }
  [[noreturn]] static void tool_error(const std::string& why, const std::string& raw) {
    Utf8Stream utf8;
    std::string text = utf8.push(raw);
    text += utf8.finish();
    throw Refusal{{.code = TurnCode::kToolParse,
                   .message = "the model's tool call cannot be read: " + why,
                   .raw = std::move(text)}};
  }

  // What was held back for stop strings and unfinished characters.
  void drain() {
    if (in_call_) tool_error("the reply ends inside the call", raw_);
    if (request_.tool_choice == ToolChoice::kRequired && calls_ == 0) {
      tool_error("the reply ends before the call that is required",
                 tokenizer_.decode(std::span(all_).subspan(z(turn_.prompt_tokens)), true));
    }
    TurnDelta rest{.text = text_.finish(), .reasoning = end_thought()};
    if (!rest.text.empty() || !rest.reasoning.empty()) sink_.delta(std::move(rest));
  }

  // Gives the sequence back and ends the turn with its one terminal frame.
  void finish(std::optional<TurnError>& failed) {
    const auto started = Clock::now();
    sink_.phase(TurnPhase::kPost, 0, 0);
    session_.set_hooks({});
    if (opened_) {
      try {
        close(failed && failed->code != TurnCode::kToolParse &&
              failed->code != TurnCode::kGrammarDeadEnd);
      } catch (const std::exception& e) {
        ASSAY_LOG(error, "{}: {}", request_.id, e.what());
        if (!failed) failed = {.code = TurnCode::kEngine, .message = "the turn could not be kept"};
      }
    }
    done_.phases.post_ms = ms_since(started);
    b_.remember(done_);
    sink_.kairos({.eot_margin = margin_,
                  .stop = failed      ? StopReason::kError
                          : complete_ ? stop_
                                      : StopReason::kAborted});
    if (failed) {
      sink_.error(*failed, done_);
    } else if (complete_) {
      sink_.done(done_);
    } else {
      sink_.aborted(done_);
    }
  }
  void close(bool broken) {
    if (!kept()) {
      session_.reset();
      session_.exchange(b_.scratch_);
    } else if (broken || spoiled_) {
      b_.store_.drop(session_);
    } else {
      b_.store_.close(session_, fed());
    }
    events();
  }

  ModelBackend& b_;
  Turn& turn_;
  const TurnRequest& request_;
  TurnSink& sink_;
  const std::atomic<bool>& cancelled_;
  const Tokenizer& tokenizer_;
  Session& session_;
  ReplyText text_;
  std::vector<TokenId> all_;  // prompt and reply
  TokenId channel_;
  TokenId channel_end_;
  TokenId call_;
  TokenId call_end_;

  TurnDone done_;
  std::span<const float> logits_;
  std::vector<float> work_;
  std::optional<double> margin_;
  StopReason stop_ = StopReason::kStopToken;
  bool opened_ = false;    // the session holds this turn's sequence
  bool complete_ = false;  // to its natural end
  bool spoiled_ = false;   // the cache holds numbers that are none
  bool in_call_ = false;
  bool in_thought_ = false;
  bool label_open_ = false;
  std::string raw_;  // of the call being written
  std::string label_;
  Utf8Stream thought_utf8_;
  int calls_ = 0;
};

void ModelBackend::run(PreparedTurn& turn, TurnSink& sink, const std::atomic<bool>& cancelled) {
  Run(*this, static_cast<Turn&>(turn), sink, cancelled).run();
}

void ModelBackend::remember(const TurnDone& done) {
  const std::lock_guard lock(mutex_);
  totals_["prefill_tokens"] += done.phases.prefill_tokens;
  totals_["prefill_ms"] += done.phases.prefill_ms;
  totals_["decode_tokens"] += done.phases.decode_tokens;
  totals_["decode_ms"] += done.phases.decode_ms;
  if (done.phases.decode_ms > 0.0) {
    totals_["last_rate"] = decode_rate(done.phases);
  }
  count_ = store_.count();
  warm_ = store_.warm_prefixes();
}

// ---- embeddings, tokens ----

std::optional<TurnError> ModelBackend::embed(const EmbedRequest& request,
                                             EmbedResult& result,
                                             const std::atomic<bool>& cancelled) {
  result.space = embedding_space_;
  const auto width = z(info_.width);
  bool out = false;
  std::optional<TurnError> failed;
  try {
    std::vector<std::vector<TokenId>> inputs = request.ids;
    for (const std::string& text : request.inputs) {
      inputs.push_back(model_.tokenizer().encode(text, true, SpecialMode::kNone));
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::string param = "input[" + std::to_string(i) + "]";
      const auto& ids = inputs[i];
      const bool bos = !ids.empty() && model_.tokenizer().bos() == ids[0];
      if (ids.size() <= (bos ? 1U : 0U)) refuse(TurnCode::kBadRequest, param + ": is empty", param);
      if (ids.size() > z(info_.context)) {
        refuse(TurnCode::kContextExceeded,
               param + ": " + std::to_string(ids.size()) + " tokens, the context holds " +
                   std::to_string(info_.context),
               param);
      }
      for (const TokenId id : ids) {
        if (id < 0 || id >= info_.vocabulary)
          refuse(TurnCode::kTokenOutOfRange,
                 param + ": token id " + std::to_string(id) + " is not in the vocabulary",
                 param);
      }
    }
    session_.exchange(scratch_);
    out = true;
    for (const auto& ids : inputs) {
      session_.reset();
      std::vector<double> sum(width);
      const int skip = model_.tokenizer().bos() == ids[0] ? 1 : 0;
      session_.set_hooks({.stage = [&](const StageChunk& c) {
        if (c.layer != embedding_layer_ || std::string_view(c.name) != "layer_out") return;
        for (int t = 0; t < c.tokens; ++t) {
          if (c.first_position + t < skip) continue;
          for (std::size_t k = 0; k < width; ++k)
            sum[k] += static_cast<double>(c.data[z(t) * width + k]);
        }
      }});
      for (std::size_t at = 0; at < ids.size();) {
        if (cancelled) refuse(TurnCode::kNotReady, "cancelled: the server is stopping");
        const std::size_t n = std::min(ids.size() - at, z(kFirstSlice));
        session_.feed(
            std::span(ids).subspan(at, n),
            [](int) { return false; },
            [](int, std::span<const float>) {});
        at += n;
      }
      double length = 0.0;
      for (const double v : sum) length += v * v;
      length = std::sqrt(length);
      if (!(length > 0.0) || !std::isfinite(length))
        refuse(TurnCode::kNumeric,
               "the embedding is not finite in layer " + std::to_string(embedding_layer_));
      auto& vector = result.vectors.emplace_back();
      for (const double v : sum) vector.push_back(static_cast<float>(v / length));
      result.prompt_tokens += static_cast<int>(ids.size());
    }
  } catch (const Refusal& r) {
    failed = r.error;
  } catch (const std::bad_alloc&) {
    failed = TurnError{.code = TurnCode::kOutOfMemory, .message = "out of memory"};
  } catch (const std::exception& e) {
    ASSAY_LOG(error, "embed: {}", e.what());
    failed = TurnError{.code = TurnCode::kEngine, .message = "the embedding failed"};
  }
  if (out) {
    session_.set_hooks({});
    session_.reset();
    session_.exchange(scratch_);
  }
  if (failed) result.vectors.clear();
  return failed;
}

std::vector<TokenId> ModelBackend::tokenize(std::string_view text, bool special) const {
  return model_.tokenizer().encode(text, false, special ? SpecialMode::kAll : SpecialMode::kNone);
}

std::optional<TurnError> ModelBackend::detokenize(const std::vector<TokenId>& ids,
                                                  std::string& bytes) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= info_.vocabulary) {
      return TurnError{.code = TurnCode::kTokenOutOfRange,
                       .message = "token id " + std::to_string(ids[i]) + " is not in 0.." +
                                  std::to_string(info_.vocabulary - 1),
                       .param = "tokens[" + std::to_string(i) + "]"};
    }
  }
  bytes = model_.tokenizer().decode(ids, true);
  return std::nullopt;
}

}  // namespace assay
