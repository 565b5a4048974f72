// The requests that pass through the scheduler.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "engine/daemon/request_decoder.h"
#include "engine/daemon/scheduler.h"
#include "engine/daemon/wire_frames.h"
#include "engine/turn.h"

namespace assay {

class Service;

// /v1/chat, /v1/oneshot, /v1/chat/completions.
class TurnJob : public Job, public TurnSink {
 public:
  TurnJob(Service& service,
          std::string id,
          TurnRoute route,
          std::string body,
          std::shared_ptr<Exchange> exchange);

  bool prepare() override;
  void queued() override;
  void run() override;
  void drop(const TurnError& why) override;
  void abandon() override;

  void meta(const TurnMeta& meta) override;
  void phase(TurnPhase phase, int tokens_done, int tokens_total) override;
  void delta(TurnDelta delta) override;
  void tool_call(TurnToolCall call) override;
  void kairos(const TurnKairos& kairos) override;
  void snapshot(std::string_view what, std::string_view detail) override;
  void done(const TurnDone& done) override;
  void error(const TurnError& error, const TurnDone& so_far) override;
  void aborted(const TurnDone& so_far) override;

 private:
  const char* route_name() const;
  void send(std::string frames);
  // meta and kairos, where the turn ends before the backend sent them.
  void complete(StopReason stop);
  void end(std::string_view outcome, std::string frames, const TurnDone& turn);
  void note(std::string_view outcome, const TurnDone& turn);
  void tell(std::string frames);

  Service& service_;
  const TurnRoute route_;
  std::string body_;
  std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<PreparedTurn> turn_;
  std::unique_ptr<TurnEncoder> encoder_;
  bool stream_ = true;
  bool begun_ = false;  // the stream's head is with the exchange
  bool meta_sent_ = false;
  bool kairos_sent_ = false;
  bool ended_ = false;  // nothing more from the backend
  std::string why_aborted_ = "on request";
  bool told_ = false;  // the client has its last frame or document
  bool too_large_ = false;
  std::chrono::milliseconds patience_{1000};  // for a reader that is behind, over the whole turn
  std::chrono::steady_clock::time_point phase_at_{};
  TurnPhase phase_ = TurnPhase::kPost;
};

// /v1/embed, /tokenize, /detokenize: `work` makes the answer.
class AnswerJob : public Job {
 public:
  // On the prepare thread; nothing: the engine thread is needed.
  using Prepare = std::function<std::optional<HttpAnswer>()>;
  using Run = std::function<HttpAnswer(const std::atomic<bool>& cancelled)>;
  AnswerJob(Service& service,
            std::string job_id,
            const char* route,
            std::shared_ptr<Exchange> exchange,
            Prepare prepare,
            Run run)
      : Job(std::move(job_id)),
        service_(service),
        route_(route),
        exchange_(std::move(exchange)),
        prepare_(std::move(prepare)),
        run_(std::move(run)) {}
  bool prepare() override;
  void run() override;
  void drop(const TurnError& why) override;
  void abandon() override;

 private:
  void answer(HttpAnswer answer);

  Service& service_;
  const char* route_;
  std::shared_ptr<Exchange> exchange_;
  Prepare prepare_;
  Run run_;
  bool answered_ = false;
};

}  // namespace assay
