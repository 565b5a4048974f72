#include "engine/daemon/exchange.h"

namespace assay {

void Exchange::wake(std::unique_lock<std::mutex>& lock) {
  const bool call = !woken_ && !gone();
  woken_ = true;
  lock.unlock();
  if (call) wake_();
}

void Exchange::answer(HttpAnswer answer) {
  std::unique_lock lock(mutex_);
  answer_ = std::move(answer);
  head_ = true;
  finished_ = true;
  wake(lock);
}

void Exchange::begin_stream(std::vector<std::pair<std::string, std::string>> headers) {
  std::unique_lock lock(mutex_);
  answer_ = {.type = "text/event-stream", .headers = std::move(headers)};
  head_ = true;
  stream_ = true;
  wake(lock);
}

bool Exchange::push(SharedText frame, std::chrono::milliseconds patience, bool terminal) {
  std::unique_lock lock(mutex_);
  // A frame larger than the bound passes when nothing waits before it.
  if (!terminal && bytes_ >= kOutputBytes) {
    if (!room_.wait_for(lock, patience, [&] { return bytes_ < kOutputBytes || gone(); }))
      return false;
  }
  if (gone()) return false;
  const std::size_t bytes = frame->size();
  frames_.push_back(std::move(frame));
  bytes_ += bytes;
  wake(lock);
  return true;
}

void Exchange::finish() {
  std::unique_lock lock(mutex_);
  finished_ = true;
  wake(lock);
}

void Exchange::on_gone(std::function<void()> f) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone()) {
      on_gone_ = std::move(f);
      return;
    }
  }
  f();
}

Exchange::Taken Exchange::take() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  Taken taken{.head = head_, .stream = stream_, .finished = finished_};
  if (head_) taken.answer = std::move(answer_);
  head_ = false;
  taken.frames.swap(frames_);
  return taken;
}

void Exchange::written(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    bytes_ -= bytes;
  }
  room_.notify_all();
}

void Exchange::leave() {
  std::function<void()> f;
  {
    const std::lock_guard lock(mutex_);
    if (gone_.exchange(true)) return;
    frames_.clear();
    f = std::move(on_gone_);
    on_gone_ = nullptr;
  }
  room_.notify_all();
  if (f) f();
}

}  // namespace assay
