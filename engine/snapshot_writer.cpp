#include "engine/snapshot_writer.h"

#include <exception>
#include <utility>

#include "kernels/base/log.h"

namespace assay {

SnapshotWriter::SnapshotWriter(const SnapshotFolder& folder,
                               SnapshotShape shape,
                               std::size_t most_bytes,
                               std::function<void()> step)
    : folder_(folder),
      shape_(std::move(shape)),
      most_bytes_(most_bytes),
      step_(std::move(step)),
      thread_([this] { work(); }) {}

SnapshotWriter::~SnapshotWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  more_.notify_one();
  thread_.join();
}

void SnapshotWriter::put(const std::string& name, std::shared_ptr<const Snapshot> snapshot) {
  const std::size_t bytes = snapshot->bytes();
  std::size_t waits = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto old = waiting_.find(name);
    const std::size_t freed = old == waiting_.end() ? 0 : old->second->bytes();
    waits = count_.waiting_bytes - freed;
    if (waits == 0 || waits + bytes <= most_bytes_) {
      count_.waiting_bytes = waits + bytes;
      if (old != waiting_.end()) {
        old->second = std::move(snapshot);
        ++count_.replaced;
      } else {
        waiting_.emplace(name, std::move(snapshot));
        order_.push_back(name);
      }
      more_.notify_one();
      return;
    }
    ++count_.failed;
  }
  tell("failed",
       name + ": " + std::to_string(bytes) + " bytes, and " + std::to_string(waits) +
           " still wait for the disk");
}

std::shared_ptr<const Snapshot> SnapshotWriter::waiting(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto it = waiting_.find(name);
  if (it != waiting_.end()) return it->second;
  return writing_ == name ? now_ : nullptr;
}

void SnapshotWriter::listen(SnapshotListener listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
}

SnapshotWriter::Count SnapshotWriter::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void SnapshotWriter::tell(const char* what, const std::string& detail) const {
  if (std::string_view(what) == "failed") ASSAY_LOG(error, "snapshot {}", detail);
  const std::lock_guard lock(listener_mutex_);
  if (listener_) listener_(what, detail);
}

void SnapshotWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_.wait(lock, [this] { return ending_ || !order_.empty(); });
    if (order_.empty()) return;
    const std::string name = std::exchange(order_.front(), {});
    order_.pop_front();
    const auto it = waiting_.find(name);
    writing_ = name;
    now_ = std::move(it->second);
    waiting_.erase(it);
    const std::shared_ptr<const Snapshot> snapshot = now_;
    count_.waiting_bytes -= snapshot->bytes();
    lock.unlock();
    std::string failure;
    try {
      folder_.write(name, *snapshot, shape_, step_);
    } catch (const std::exception& e) {
      failure = e.what();
    }
    lock.lock();
    writing_.clear();
    now_.reset();
    ++(failure.empty() ? count_.written : count_.failed);
    lock.unlock();
    if (failure.empty()) {
      tell("written", name + ", " + std::to_string(snapshot->ids.size()) + " tokens");
    } else {
      tell("failed", name + ": " + failure);
    }
    lock.lock();
  }
}

}  // namespace assay
