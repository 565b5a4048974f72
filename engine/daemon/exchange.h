// One HTTP answer between the thread that makes it and the thread that writes it: a mailbox with a bound.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace assay {

inline constexpr std::size_t kOutputBytes = 256 * 1024;  // held for a reader that is behind

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

using SharedText = std::shared_ptr<const std::string>;

class Exchange {
 public:
  // `wake` posts to the writing thread that there is something to take; called from any thread, never under the lock.
  explicit Exchange(std::function<void()> wake) : wake_(std::move(wake)) {}

  // The maker's side, any thread. A whole answer; or a stream: begin, frames, finish.
  void answer(HttpAnswer answer);
  void begin_stream(std::vector<std::pair<std::string, std::string>> headers);
  // False when the reader is gone, or stays so far behind that `patience` ran out: the frame was not taken. Terminal
  // frames are always taken.
  bool push(SharedText frame, std::chrono::milliseconds patience, bool terminal = false);
  void finish();
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  // Called once when the reader leaves, at once if it has left; then forgotten.
  void on_gone(std::function<void()> f);

  // The writer's side.
  struct Taken {
    bool head = false;  // `answer` is new: a document, or the head of a stream
    bool stream = false;
    bool finished = false;  // nothing follows
    HttpAnswer answer = {};
    std::vector<SharedText> frames = {};
  };
  Taken take();
  void written(std::size_t bytes);
  void leave();

 private:
  void wake(std::unique_lock<std::mutex>& lock);

  std::function<void()> wake_;
  std::function<void()> on_gone_;
  std::mutex mutex_;
  std::condition_variable room_;
  std::atomic<bool> gone_{false};
  HttpAnswer answer_;
  std::vector<SharedText> frames_;
  std::size_t bytes_ = 0;  // taken or not, but not yet written
  bool woken_ = false;
  bool head_ = false;
  bool stream_ = false;
  bool finished_ = false;
};

}  // namespace assay
