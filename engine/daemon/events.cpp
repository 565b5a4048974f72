#include "engine/daemon/events.h"

#include <chrono>

#include <nlohmann/json.hpp>

#include "engine/daemon/wire_frames.h"

namespace assay {

void Events::subscribe(const std::shared_ptr<Exchange>& exchange) {
  exchange->begin_stream({});
  const std::lock_guard lock(mutex_);
  if (closed_) {
    exchange->finish();
    return;
  }
  subscribers_.push_back(exchange);
  readers_.store(static_cast<int>(subscribers_.size()), std::memory_order_relaxed);
  exchange->push(std::make_shared<const std::string>(sse_frame("hello", {{"seq", sequence_}})),
                 std::chrono::milliseconds(0));
}

void Events::publish(std::string_view event, nlohmann::json data) {
  const std::lock_guard lock(mutex_);
  data["seq"] = ++sequence_;
  // Readers that left are dropped here and by sweep(): an event may be a long time coming.
  if (subscribers_.empty()) return;
  const auto frame = std::make_shared<const std::string>(sse_frame(event, data));
  std::erase_if(subscribers_, [&](const std::shared_ptr<Exchange>& e) {
    if (e->push(frame, std::chrono::milliseconds(0))) return false;
    e->finish();  // behind by the whole bound: it may come back and see the gap in `seq`
    return true;
  });
  readers_.store(static_cast<int>(subscribers_.size()), std::memory_order_relaxed);
}

void Events::sweep() {
  const std::lock_guard lock(mutex_);
  std::erase_if(subscribers_, [](const std::shared_ptr<Exchange>& e) { return e->gone(); });
  readers_.store(static_cast<int>(subscribers_.size()), std::memory_order_relaxed);
}

void Events::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& e : subscribers_) e->finish();
  subscribers_.clear();
  readers_.store(0, std::memory_order_relaxed);
}

}  // namespace assay
