#include "engine/turn.h"

#include <cmath>

namespace assay {
namespace {

struct CodeRow {
  TurnCode code;
  const char* name;
  int status;
};
constexpr CodeRow kCodes[] = {
    {TurnCode::kBadRequest, "bad_request", 400},
    {TurnCode::kBadJson, "bad_json", 400},
    {TurnCode::kUnknownField, "unknown_field", 400},
    {TurnCode::kContextExceeded, "context_exceeded", 400},
    {TurnCode::kTokenOutOfRange, "token_out_of_range", 400},
    {TurnCode::kBadGrammar, "bad_grammar", 400},
    {TurnCode::kBadTools, "bad_tools", 400},
    {TurnCode::kUnauthorized, "unauthorized", 401},
    {TurnCode::kForbidden, "forbidden", 403},
    {TurnCode::kNotFound, "not_found", 404},
    {TurnCode::kMethodNotAllowed, "method_not_allowed", 405},
    {TurnCode::kTimeout, "timeout", 408},
    {TurnCode::kConflict, "conflict", 409},
    {TurnCode::kTooLarge, "too_large", 413},
    {TurnCode::kCannotWithModel, "cannot_with_model", 422},
    {TurnCode::kQueueFull, "queue_full", 429},
    {TurnCode::kHeaderTooLarge, "header_too_large", 431},
    {TurnCode::kNumeric, "numeric_error", 500},
    {TurnCode::kOutOfMemory, "out_of_memory", 500},
    {TurnCode::kGrammarDeadEnd, "grammar_dead_end", 500},
    {TurnCode::kToolParse, "tool_parse_error", 500},
    {TurnCode::kEngine, "engine_error", 500},
    {TurnCode::kUnsupported, "unsupported", 501},
    {TurnCode::kUnsupportedOnMoe, "unsupported_on_moe", 501},
    {TurnCode::kNotReady, "not_ready", 503},
};

const CodeRow& row_of(TurnCode code) {
  for (const CodeRow& row : kCodes) {
    if (row.code == code) return row;
  }
  return row_of(TurnCode::kEngine);
}

}  // namespace

const char* turn_code_name(TurnCode code) { return row_of(code).name; }
int turn_code_status(TurnCode code) { return row_of(code).status; }

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kStopToken:
      return "stop_token";
    case StopReason::kStopString:
      return "stop_string";
    case StopReason::kLength:
      return "length";
    case StopReason::kContext:
      return "context";
    case StopReason::kToolCalls:
      return "tool_calls";
    case StopReason::kAborted:
      return "aborted";
    case StopReason::kError:
      return "error";
  }
  return "error";
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFinished:
      return "finished";
    case Verdict::kSevered:
      return "severed";
    case Verdict::kUnknown:
      return "unknown";
  }
  return "unknown";
}

Verdict verdict_of(std::optional<double> eot_margin, double threshold) {
  if (!eot_margin || !std::isfinite(*eot_margin)) return Verdict::kUnknown;
  return *eot_margin < threshold ? Verdict::kSevered : Verdict::kFinished;
}

const char* turn_phase_name(TurnPhase phase) {
  switch (phase) {
    case TurnPhase::kRecall:
      return "recall";
    case TurnPhase::kPrefill:
      return "prefill";
    case TurnPhase::kDecode:
      return "decode";
    case TurnPhase::kPost:
      return "post";
  }
  return "post";
}

}  // namespace assay
