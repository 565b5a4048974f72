// Counters of the daemon and their Prometheus text. Every value that leaves is finite.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/turn.h"

namespace assay {

class Metrics {
 public:
  void answered(std::string_view route, int status);
  // outcome: done, aborted or an error's code.
  void turn_ended(std::string_view outcome, const TurnDone& turn);

  // Read once a scrape: what the scheduler and the server know at this moment.
  struct Gauges {
    int in_flight = 0;
    int waiting = 0;
    int subscribers = 0;
    std::int64_t heartbeat_ms = 0;
    bool healthy = true;
  };
  std::string text(const Gauges& gauges,
                   std::span<const ArmedOp> armed,
                   std::span<const BackendMetric> backend) const;

  // Kept by the HTTP server.
  std::atomic<int> connections{0};
  std::atomic<std::int64_t> connections_total{0};
  std::atomic<std::int64_t> accept_pauses{0};
  std::atomic<std::int64_t> refused_heads{0};

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> answers_;
  std::map<std::string, std::int64_t, std::less<>> turns_;
  std::map<std::string, std::int64_t, std::less<>> cold_;  // by reason
  std::int64_t hits_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t reused_tokens_ = 0;
  std::int64_t completion_tokens_ = 0;
  PhaseTimes sum_;
  double last_tokens_per_s_ = 0.0;
};

}  // namespace assay
