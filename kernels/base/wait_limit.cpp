#include "kernels/base/wait_limit.h"

#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include <unistd.h>

namespace assay {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(50);

struct Wait {
  const char* what = nullptr;  // null: a free slot
  std::chrono::milliseconds limit{};
  Clock::time_point deadline;
};

// One thread looks after all waits; entering and leaving one costs a lock.
class Watch {
 public:
  Watch() {
    std::thread([this] { look(); }).detach();
  }
  std::size_t enter(const char* what, std::chrono::milliseconds limit) {
    const std::lock_guard lock(guard_);
    std::size_t slot = 0;
    while (slot < waits_.size() && waits_[slot].what != nullptr) ++slot;
    if (slot == waits_.size()) waits_.emplace_back();
    waits_[slot] = {what, limit, Clock::now() + limit};
    return slot;
  }
  void leave(std::size_t slot) {
    const std::lock_guard lock(guard_);
    waits_[slot].what = nullptr;
  }

 private:
  [[noreturn]] void look() {
    for (;;) {
      std::this_thread::sleep_for(kLook);
      const std::lock_guard lock(guard_);
      for (const Wait& w : waits_) {
        if (w.what == nullptr || Clock::now() < w.deadline) continue;
        std::fprintf(stderr,
                     "no answer within %.1f s while waiting for %s; the card or its driver hangs\n",
                     static_cast<double>(w.limit.count()) * 1e-3,
                     w.what);
        ::_exit(1);  // the waiting thread cannot be unwound
      }
    }
  }
  std::mutex guard_;
  std::vector<Wait> waits_;
};

// Never destroyed: its thread outlives every static object.
Watch& watch() {
  static Watch* const w = new Watch;
  return *w;
}

}  // namespace

WaitLimit::WaitLimit(const char* what, std::chrono::milliseconds limit)
    : slot_(watch().enter(what, limit)) {}
WaitLimit::~WaitLimit() { watch().leave(slot_); }

}  // namespace assay
