// Snapshots on their way to disk. A thread of its own writes them, so that no turn waits for a disk; of a file that
// changes faster than it can be written only the newest version is.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "engine/snapshot.h"

namespace assay {

// What became of a snapshot, in one word, and a line for people. Called from any thread; must not block.
using SnapshotListener = std::function<void(std::string_view what, std::string_view detail)>;

class SnapshotWriter {
 public:
  // most_bytes: of what waits; one snapshot may wait whatever its size. `step` as SnapshotFolder::write (tests).
  SnapshotWriter(const SnapshotFolder& folder,
                 SnapshotShape shape,
                 std::size_t most_bytes,
                 std::function<void()> step = {});
  // Once everything that waits was written or has failed.
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // Never waits for the disk. What does not fit beside the others that wait is not written, and counts as failed.
  void put(const std::string& name, std::shared_ptr<const Snapshot> snapshot);
  // The newest version that is not on disk yet, or null.
  std::shared_ptr<const Snapshot> waiting(const std::string& name) const;
  // Told "written" and "failed". No call to the one before is under way afterwards.
  void listen(SnapshotListener listener);

  struct Count {
    std::uint64_t written = 0;
    std::uint64_t replaced = 0;  // by a newer version before their turn came
    std::uint64_t failed = 0;
    std::size_t waiting_bytes = 0;
  };
  Count count() const;

 private:
  void work();
  void tell(const char* what, const std::string& detail) const;

  const SnapshotFolder& folder_;
  const SnapshotShape shape_;
  const std::size_t most_bytes_;
  const std::function<void()> step_;
  mutable std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::string> order_;  // names in waiting_
  std::map<std::string, std::shared_ptr<const Snapshot>> waiting_;
  std::string writing_;  // the name whose snapshot is being written
  std::shared_ptr<const Snapshot> now_;
  bool ending_ = false;
  Count count_;
  mutable std::mutex listener_mutex_;
  SnapshotListener listener_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace assay
