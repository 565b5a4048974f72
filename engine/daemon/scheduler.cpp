#include "engine/daemon/scheduler.h"

#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "engine/daemon/scarce_memory.h"
#include "kernels/base/log.h"

namespace assay {
namespace {

constexpr std::size_t kRememberedIds = 4096;
constexpr std::chrono::milliseconds kIdleBeat{100};

// Short enough to need none.
TurnError no_memory_error() { return {.code = TurnCode::kOutOfMemory, .message = "out of memory"}; }

}  // namespace

std::int64_t Scheduler::now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Scheduler::Scheduler(int queue, std::function<void()> broken)
    : queue_(static_cast<std::size_t>(queue)), broken_(std::move(broken)), beat_ms_(now_ms()) {
  prepare_thread_ = std::thread([this] { prepare_loop(); });
  engine_thread_ = std::thread([this] { engine_loop(); });
}

Scheduler::~Scheduler() {
  stop({.code = TurnCode::kNotReady, .message = "the server is stopping"});
  cancel_running();
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  prepare_wake_.notify_all();
  engine_wake_.notify_all();
  prepare_thread_.join();
  engine_thread_.join();
}

Scheduler::Admission Scheduler::submit(std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Admission::kStopping;
    if (waiting_ >= queue_) return Admission::kFull;
    job->since_ = std::chrono::steady_clock::now();
    const auto entered = live_.emplace(job->id, job).first;
    try {
      preparing_.push_back(std::move(job));
    } catch (const std::bad_alloc&) {
      live_.erase(entered);
      throw;
    }
    ++waiting_;
  }
  prepare_wake_.notify_one();
  return Admission::kTaken;
}

void Scheduler::over(const Job& job) {
  live_.erase(job.id);
  try {
    ended_order_.push_back(job.id);
    ended_.insert(job.id);
  } catch (const std::bad_alloc&) {
    return;  // a late abort of this one will be answered `unknown`
  }
  if (ended_order_.size() > kRememberedIds) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

AbortState Scheduler::abort(const std::string& id) {
  std::shared_ptr<Job> waiting;
  {
    const std::lock_guard lock(mutex_);
    const auto it = live_.find(id);
    if (it == live_.end())
      return ended_.contains(id) ? AbortState::kFinished : AbortState::kUnknown;
    const std::shared_ptr<Job> job = it->second;
    job->cancelled.store(true, std::memory_order_relaxed);
    if (job->state_ != Job::State::kQueued) return AbortState::kAborted;  // its own thread ends it
    std::erase(queued_, job);
    --waiting_;
    over(*job);
    waiting = job;
  }
  surely([&] { waiting->abandon(); });
  return AbortState::kAborted;
}

void Scheduler::expire(std::chrono::milliseconds most) {
  std::vector<std::shared_ptr<Job>> late;
  {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    while (!queued_.empty() && now - queued_.front()->since_ > most) {
      late.push_back(queued_.front());
      queued_.pop_front();
      --waiting_;
      over(*late.back());
    }
  }
  for (const auto& job : late) {
    surely([&] {
      job->drop(
          {.code = TurnCode::kNotReady, .message = "waited too long for the engine; try again"});
    });
  }
}

void Scheduler::stop(const TurnError& why) {
  std::deque<std::shared_ptr<Job>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_reason_ = why;
    dropped.swap(queued_);
    for (const auto& job : dropped) {
      --waiting_;
      over(*job);
    }
  }
  for (const auto& job : dropped) surely([&] { job->drop(why); });
}

void Scheduler::cancel_running() {
  const std::lock_guard lock(mutex_);
  if (running_) running_->cancelled.store(true, std::memory_order_relaxed);
}

bool Scheduler::running() const {
  const std::lock_guard lock(mutex_);
  return running_ != nullptr;
}
int Scheduler::in_flight() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(live_.size());
}
int Scheduler::waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(waiting_);
}

void Scheduler::prepare_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    prepare_wake_.wait(lock, [&] { return quit_ || !preparing_.empty(); });
    if (preparing_.empty()) return;
    const std::shared_ptr<Job> job = preparing_.front();
    preparing_.pop_front();
    lock.unlock();
    hold_reserve();
    bool ready = false;
    try {
      ready = job->prepare();
      if (ready) job->queued();
    } catch (const std::bad_alloc&) {
      ready = false;
      surely([&] { job->drop(no_memory_error()); });
    } catch (const std::exception& e) {
      ready = false;
      ASSAY_LOG(error, "{}: while preparing: {}", job->id, e.what());
      surely([&] {
        job->drop({.code = TurnCode::kEngine, .message = "the request could not be prepared"});
      });
    }
    lock.lock();
    const bool aborted = ready && job->cancelled.load(std::memory_order_relaxed);
    const bool stopping = ready && !aborted && stopping_;
    bool no_memory = false;
    if (ready && !aborted && !stopping) {
      try {
        queued_.push_back(job);
        job->state_ = Job::State::kQueued;
        engine_wake_.notify_one();
        continue;
      } catch (const std::bad_alloc&) {
        no_memory = true;
      }
    }
    --waiting_;
    over(*job);
    TurnError why = no_memory_error();
    try {
      if (stopping) why = stop_reason_;
    } catch (const std::bad_alloc&) {
      no_memory = true;
    }
    lock.unlock();
    if (aborted) surely([&] { job->abandon(); });
    if (stopping || no_memory) surely([&] { job->drop(why); });
    lock.lock();
  }
}

void Scheduler::engine_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    beat();
    engine_wake_.wait_for(lock, kIdleBeat, [&] { return quit_ || !queued_.empty(); });
    if (queued_.empty()) {
      if (quit_) return;
      continue;
    }
    running_ = queued_.front();
    queued_.pop_front();
    --waiting_;
    running_->state_ = Job::State::kRunning;
    const std::shared_ptr<Job> job = running_;
    lock.unlock();
    beat();
    hold_reserve();
    bool threw = false;
    bool no_memory = false;
    try {
      job->run();
    } catch (const std::bad_alloc&) {
      // Of the daemon's own small allocations: the engine gives its own their code and stays whole.
      no_memory = true;
    } catch (const std::exception& e) {
      ASSAY_LOG(critical, "{}: the engine failed: {}", job->id, e.what());
      threw = true;
    } catch (...) {
      ASSAY_LOG(critical, "{}: the engine failed", job->id);
      threw = true;
    }
    if (no_memory) surely([&] { job->drop(no_memory_error()); });
    lock.lock();
    over(*job);
    running_.reset();
    if (!threw) continue;
    lock.unlock();
    surely([&] {
      job->drop(
          {.code = TurnCode::kEngine, .message = "the engine failed; the server is stopping"});
    });
    broken_();
    lock.lock();
  }
}

}  // namespace assay
