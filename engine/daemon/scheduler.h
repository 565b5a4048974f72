// Who runs when: one thread prepares, one thread owns the engine, a bounded number of requests waits between them.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "engine/turn.h"

namespace assay {

// A request on its way. Exactly one of prepare's own answer, run, drop and abandon ends it.
class Job {
 public:
  explicit Job(std::string job_id) : id(std::move(job_id)) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string id;
  std::atomic<bool> cancelled{false};

  // On the prepare thread. False: the job has answered and is over.
  virtual bool prepare() = 0;
  // Waiting for the engine now.
  virtual void queued() {}
  // On the engine thread, to the terminal frame.
  virtual void run() = 0;
  // Never ran, for this reason (any thread).
  virtual void drop(const TurnError& why) = 0;
  // Never ran, because it was aborted (any thread).
  virtual void abandon() = 0;

 private:
  friend class Scheduler;
  enum class State { kPreparing, kQueued, kRunning };
  State state_ = State::kPreparing;
  std::chrono::steady_clock::time_point since_;
};

enum class AbortState { kAborted, kFinished, kUnknown };

class Scheduler {
 public:
  // `broken` is called on the engine thread when a job's run threw: the engine takes no more turns.
  Scheduler(int queue, std::function<void()> broken);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  enum class Admission { kTaken, kFull, kStopping };
  Admission submit(std::shared_ptr<Job> job);
  // Of a job that waits or runs: it ends aborted. Any thread, idempotent.
  AbortState abort(const std::string& id);

  // Drops jobs that waited longer than `most`.
  void expire(std::chrono::milliseconds most);
  // No new jobs; those that wait are dropped, the running one goes on until cancel_running.
  void stop(const TurnError& why);
  void cancel_running();

  void beat() { beat_ms_.store(now_ms(), std::memory_order_relaxed); }
  std::int64_t heartbeat_age_ms() const {
    return now_ms() - beat_ms_.load(std::memory_order_relaxed);
  }
  bool running() const;
  int in_flight() const;
  int waiting() const;

 private:
  static std::int64_t now_ms();
  void prepare_loop();
  void engine_loop();
  void over(const Job& job);  // under the lock

  const std::size_t queue_;
  std::function<void()> broken_;
  mutable std::mutex mutex_;
  std::condition_variable prepare_wake_;
  std::condition_variable engine_wake_;
  std::unordered_map<std::string, std::shared_ptr<Job>> live_;
  std::deque<std::shared_ptr<Job>> preparing_;
  std::deque<std::shared_ptr<Job>> queued_;
  std::shared_ptr<Job> running_;
  std::size_t waiting_ = 0;  // submitted and not yet running
  // The last ids that ended, so that a late abort can be told from a wrong one.
  std::deque<std::string> ended_order_;
  std::unordered_set<std::string> ended_;
  TurnError stop_reason_;
  bool stopping_ = false;
  bool quit_ = false;
  std::atomic<std::int64_t> beat_ms_;
  std::thread prepare_thread_;
  std::thread engine_thread_;
};

}  // namespace assay
