// The routes, without a socket: a request's head and body in, an Exchange that will hold the answer out.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/daemon/events.h"
#include "engine/daemon/exchange.h"
#include "engine/daemon/metrics.h"
#include "engine/daemon/scheduler.h"
#include "engine/turn.h"

namespace assay {

struct ServiceSettings {
  int queue = 64;
  std::chrono::milliseconds queue_timeout{60'000};
  // Health turns red when a busy engine gives no sign of life for this long.
  std::chrono::milliseconds stall{60'000};
  double eot_threshold = kEotThreshold;
  std::string api_key = {};  // empty: none needed
  std::string proofs = {};   // JSON of /v1/proofs; empty: nothing was armed by a proof
};

struct HttpCall {
  std::string method;
  std::string path;  // without the query
  std::string host;
  std::string origin;
  std::string authorization;
  std::string body;
};

class Service {
 public:
  Service(TurnBackend& backend, ServiceSettings settings);
  ~Service();

  // What the head alone decides: no such route, method, key, origin, stopping. Before the body is read.
  std::optional<HttpAnswer> refuse_head(const HttpCall& call);
  // The answer comes through the exchange, now or later. I/O thread.
  void handle(HttpCall call, const std::shared_ptr<Exchange>& exchange);

  // A few times a second, I/O thread.
  void tick();
  // Waiting turns end now; the running one when it is done or cancel_running() is called.
  void stop();
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  void cancel_running() { scheduler_.cancel_running(); }
  bool busy() const { return scheduler_.in_flight() > 0; }
  // The engine failed for good: the process should end.
  bool broken() const { return broken_.load(); }
  Metrics& metrics() { return metrics_; }

  // For the jobs.
  void reply(const std::shared_ptr<Exchange>& exchange, std::string_view route, HttpAnswer answer);
  TurnBackend& backend() { return backend_; }
  Events& events() { return events_; }
  Scheduler& scheduler() { return scheduler_; }
  const ServiceSettings& settings() const { return settings_; }

 private:
  struct Route;
  static const Route kRoutes[];
  void turn(HttpCall call, const std::shared_ptr<Exchange>& exchange, const Route& route);
  void submit(const std::shared_ptr<Job>& job,
              const std::shared_ptr<Exchange>& exchange,
              std::string_view route);
  void abort(const HttpCall& call, const std::shared_ptr<Exchange>& exchange);
  void similarity(const HttpCall& call, const std::shared_ptr<Exchange>& exchange);
  HttpAnswer health() const;
  HttpAnswer capabilities() const;
  HttpAnswer models() const;
  HttpAnswer model(const std::string& id) const;
  bool key_fits(std::string_view authorization) const;

  TurnBackend& backend_;
  ServiceSettings settings_;
  std::string key_digest_;
  std::int64_t started_s_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> broken_{false};
  Metrics metrics_;
  Events events_;
  Scheduler scheduler_;  // last: its threads use the rest
};

// The page at `/`, embedded at build.
extern const std::string_view kStatusPage;

}  // namespace assay
