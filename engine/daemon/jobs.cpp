#include "engine/daemon/jobs.h"

#include <ctime>
#include <new>
#include <utility>

#include <nlohmann/json.hpp>

#include "engine/daemon/service.h"
#include "kernels/base/log.h"

namespace assay {
namespace {

constexpr std::size_t kDocumentBytes = std::size_t{64} << 20;
// Phase events a turn: enough for a live page, few enough for hundreds of readers.
constexpr std::chrono::milliseconds kPhaseEvery{20};

nlohmann::json phases_json(const PhaseTimes& p) {
  return {{"prefill", p.prefill_ms},
          {"recall", p.recall_ms},
          {"decode", p.decode_ms},
          {"post", p.post_ms}};
}

}  // namespace

TurnJob::TurnJob(Service& service,
                 std::string job_id,
                 TurnRoute route,
                 std::string body,
                 std::shared_ptr<Exchange> exchange)
    : Job(std::move(job_id)),
      service_(service),
      route_(route),
      body_(std::move(body)),
      exchange_(std::move(exchange)) {}

const char* TurnJob::route_name() const {
  switch (route_) {
    case TurnRoute::kChat:
      return "/v1/chat";
    case TurnRoute::kOneshot:
      return "/v1/oneshot";
    case TurnRoute::kOpenAi:
      return "/v1/chat/completions";
  }
  return "";
}

bool TurnJob::prepare() {
  DecodedTurn decoded;
  auto error = decode_turn(body_, route_, service_.backend().info(), decoded);
  body_ = std::string();  // up to 8 MiB, not needed while waiting
  if (!error) {
    decoded.request.id = id;
    TurnError refused;
    const bool byte_exact = decoded.request.byte_exact;
    turn_ = service_.backend().prepare(std::move(decoded.request), refused);
    if (turn_ == nullptr) {
      error = std::move(refused);
    } else {
      stream_ = decoded.stream;
      encoder_ = make_encoder(
          {.id = id,
           .model = decoded.model.empty() ? service_.backend().info().name : decoded.model,
           .ignored = std::move(decoded.ignored),
           .lost = turn_->lost,
           .armed = service_.backend().armed(),
           .openai = route_ == TurnRoute::kOpenAi,
           .stream = stream_,
           .byte_exact = byte_exact,
           .include_usage = decoded.include_usage,
           .eot_threshold = service_.settings().eot_threshold,
           .created_s = static_cast<std::int64_t>(std::time(nullptr))});
    }
  }
  if (!error) return true;
  service_.reply(exchange_, route_name(), error_answer(*error));
  return false;
}

void TurnJob::queued() {
  if (!stream_) return;
  service_.metrics().answered(route_name(), 200);
  exchange_->begin_stream({{"X-Request-Id", id}});
  begun_ = true;
}

void TurnJob::run() {
  service_.backend().run(*turn_, *this, cancelled);
  if (!ended_) error({.code = TurnCode::kEngine, .message = "the turn ended without a result"}, {});
}

void TurnJob::send(std::string frames) {
  if (!stream_ || frames.empty()) return;
  const auto before = std::chrono::steady_clock::now();
  if (!exchange_->push(std::make_shared<const std::string>(std::move(frames)), patience_)) {
    if (!cancelled.exchange(true) && !exchange_->gone()) {
      why_aborted_ = "the reader is too slow";
      ASSAY_LOG(warn, "{}: {}, ended", id, why_aborted_);
    }
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - before);
  patience_ = waited < patience_ ? patience_ - waited : std::chrono::milliseconds(0);
}

void TurnJob::meta(const TurnMeta& m) {
  if (ended_ || meta_sent_) return;
  service_.events().publish(
      "start",
      {{"id", id}, {"prompt_tokens", m.prompt_tokens}, {"reused_tokens", m.reused_tokens}});
  send(encoder_->meta(m));
  meta_sent_ = true;
}

void TurnJob::phase(TurnPhase phase, int tokens_done, int tokens_total) {
  service_.scheduler().beat();
  if (ended_) return;
  const auto now = std::chrono::steady_clock::now();
  if (phase == phase_ && now - phase_at_ < kPhaseEvery) return;
  phase_ = phase;
  phase_at_ = now;
  if (service_.events().readers() == 0) return;
  service_.events().publish("phase",
                            {{"id", id},
                             {"phase", turn_phase_name(phase)},
                             {"done", tokens_done},
                             {"total", tokens_total}});
}

void TurnJob::delta(TurnDelta d) {
  service_.scheduler().beat();
  if (ended_) return;
  send(encoder_->delta(d));
  if (!too_large_ && encoder_->held_bytes() > kDocumentBytes) {
    too_large_ = true;
    cancelled.store(true);
  }
}

void TurnJob::tool_call(TurnToolCall call) {
  if (!ended_) send(encoder_->tool_call(call));
}

void TurnJob::kairos(const TurnKairos& k) {
  if (ended_ || kairos_sent_) return;
  // Part of the end, which a reader that is behind gets too.
  std::string frames = encoder_->kairos(k);
  if (stream_ && !frames.empty()) {
    exchange_->push(
        std::make_shared<const std::string>(std::move(frames)), std::chrono::milliseconds(0), true);
  }
  kairos_sent_ = true;
}

void TurnJob::snapshot(std::string_view what, std::string_view detail) {
  service_.events().publish("snapshot", {{"id", id}, {"what", what}, {"detail", detail}});
}

void TurnJob::complete(StopReason stop) {
  if (!meta_sent_) {
    send(encoder_->meta({.prompt_tokens = turn_->prompt_tokens}));
    meta_sent_ = true;
  }
  kairos({.stop = stop});
}

void TurnJob::end(std::string_view outcome, std::string frames, const TurnDone& t) {
  ended_ = true;
  try {
    note(outcome, t);
  } catch (const std::bad_alloc&) {
    ASSAY_LOG(error, "out of memory: the end of a turn is not in the log");
  }
  tell(std::move(frames));
}

// Metrics, events, log.
void TurnJob::note(std::string_view outcome, const TurnDone& t) {
  service_.metrics().turn_ended(outcome, t);
  service_.events().publish("end",
                            {{"id", id},
                             {"outcome", outcome},
                             {"prompt_tokens", t.prompt_tokens},
                             {"reused_tokens", t.reused_tokens},
                             {"completion_tokens", t.completion_tokens},
                             {"phases_ms", phases_json(t.phases)},
                             {"tokens_per_s", tokens_per_second(t)},
                             {"prefix", t.cold_reason.empty() ? "hit" : "cold:" + t.cold_reason}});
  ASSAY_LOG(info,
            "TURN-PHASE id={} prefill={:.1f}ms({}tok) recall={:.1f}ms({}tok) "
            "decode={:.1f}ms({}tok) post={:.1f}ms "
            "prefix={} outcome={}",
            id,
            t.phases.prefill_ms,
            t.phases.prefill_tokens,
            t.phases.recall_ms,
            t.phases.recall_tokens,
            t.phases.decode_ms,
            t.phases.decode_tokens,
            t.phases.post_ms,
            t.cold_reason.empty() ? "hit" : "cold:" + t.cold_reason,
            outcome);
}

void TurnJob::tell(std::string frames) {
  if (stream_) {
    exchange_->push(
        std::make_shared<const std::string>(std::move(frames)), std::chrono::milliseconds(0), true);
    told_ = true;
    exchange_->finish();
  } else {
    service_.reply(exchange_, route_name(), encoder_->document());
    told_ = true;
  }
}

void TurnJob::done(const TurnDone& d) {
  if (ended_) return;
  complete(StopReason::kStopToken);
  end("done", encoder_->done(d), d);
}

void TurnJob::error(const TurnError& e, const TurnDone& so_far) {
  if (ended_) return;
  complete(StopReason::kError);
  if (turn_code_status(e.code) >= 500 && e.code != TurnCode::kNotReady) {
    service_.events().publish(
        "fault", {{"id", id}, {"code", turn_code_name(e.code)}, {"message", e.message}});
  }
  end(turn_code_name(e.code), encoder_->error(e), so_far);
}

void TurnJob::aborted(const TurnDone& so_far) {
  if (ended_) return;
  if (too_large_) {
    error({.code = TurnCode::kTooLarge, .message = "the answer is over 64 MiB; ask for a stream"},
          so_far);
    return;
  }
  if (!stream_ && service_.stopping()) {  // the client asked for an answer and is still there
    error({.code = TurnCode::kNotReady, .message = "the server is stopping"}, so_far);
    return;
  }
  complete(StopReason::kAborted);
  service_.events().publish("abort", {{"id", id}});
  end("aborted", encoder_->aborted(why_aborted_), so_far);
}

void TurnJob::drop(const TurnError& why) {
  if (encoder_ == nullptr || (stream_ && !begun_)) {
    service_.reply(exchange_, route_name(), error_answer(why));
    return;
  }
  if (!ended_) error(why, {});
  if (!told_) tell(encoder_->error(why));  // there was no memory for the last frame
}

void TurnJob::abandon() { aborted({}); }

void AnswerJob::answer(HttpAnswer answer) {
  if (answered_) return;
  service_.reply(exchange_, route_, std::move(answer));
  answered_ = true;
}
bool AnswerJob::prepare() {
  auto now = prepare_();
  if (!now) return true;
  answer(std::move(*now));
  return false;
}
void AnswerJob::run() { answer(run_(cancelled)); }
void AnswerJob::drop(const TurnError& why) { answer(error_answer(why)); }
void AnswerJob::abandon() {
  answer(error_answer({.code = TurnCode::kConflict, .message = "the request was aborted"}));
}

}  // namespace assay
