// /v1/events: what happens in the daemon, in order, to every reader. A reader that falls behind is let go.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/daemon/exchange.h"

namespace assay {

class Events {
 public:
  void subscribe(const std::shared_ptr<Exchange>& exchange);
  // Adds `seq` to `data`, writes it once and hands the same text to all. Any thread.
  void publish(std::string_view event, nlohmann::json data);
  // Forgets readers that left.
  void sweep();
  void close();
  int readers() const { return readers_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> subscribers_;
  std::atomic<int> readers_{0};
  std::uint64_t sequence_ = 0;
  bool closed_ = false;
};

}  // namespace assay
