#include "engine/snapshot_writer.h"

#include <exception>
#include <new>
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
      if (old != waiting_.end()) {
        old->second = std::move(snapshot);
        ++count_.replaced;
      } else {
        order_.push_back(name);
        try {
          waiting_.emplace(name, std::move(snapshot));
        } catch (...) {  // without memory
          order_.pop_back();
          throw;
        }
      }
      count_.waiting_bytes = waits + bytes;
      more_.notify_one();
      return;
    }
    ++count_.failed;
  }
  tell("failed", [&] {
    return name + ": " + std::to_string(bytes) + " bytes, and " + std::to_string(waits) +
           " still wait for the disk";
  });
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

void SnapshotWriter::tell(const char* what, const std::function<std::string()>& detail) const {
  try {
    const std::string line = detail();
    if (std::string_view(what) == "failed") ASSAY_LOG(error, "snapshot {}", line);
    const std::lock_guard lock(listener_mutex_);
    if (listener_) listener_(what, line);
  } catch (const std::bad_alloc&) {
    // The count says it all the same.
  }
}

// Only the writing thread changes writing_.
void SnapshotWriter::write(const Snapshot& snapshot) {
  const auto over = [this](std::uint64_t& count) {
    const std::lock_guard lock(mutex_);
    ++count;
    now_.reset();
  };
  try {
    folder_.write(writing_, snapshot, shape_, step_);
  } catch (const std::exception& e) {
    over(count_.failed);
    return tell("failed", [&] { return writing_ + ": " + e.what(); });
  }
  over(count_.written);
  tell("written",
       [&] { return writing_ + ", " + std::to_string(snapshot.ids.size()) + " tokens"; });
}

void SnapshotWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_.wait(lock, [this] { return ending_ || !order_.empty(); });
    if (order_.empty()) return;
    writing_ = std::move(order_.front());
    order_.pop_front();
    const auto it = waiting_.find(writing_);
    now_ = std::move(it->second);
    waiting_.erase(it);
    const std::shared_ptr<const Snapshot> snapshot = now_;
    count_.waiting_bytes -= snapshot->bytes();
    lock.unlock();
    write(*snapshot);
    lock.lock();
    writing_.clear();
  }
}

}  // namespace assay
