#include "kernels/base/host_pool.h"

#include <algorithm>
#include <string>

#include <immintrin.h>

#include "kernels/base/error.h"

namespace assay {
namespace {
// About 20 to 50 us of pauses: longer than the gap between two ops of a decode step, far shorter than a scheduler tick.
constexpr int kSpins = 2000;
}  // namespace

HostPool::HostPool(int threads) {
  if (threads < 1 || threads > 256) {
    throw UserError("--threads " + std::to_string(threads) + ": must be 1..256");
  }
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

HostPool::~HostPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (auto& w : workers_) w.join();
}

void HostPool::do_share(int index) {
  const std::size_t begin = std::min(job_.count, job_.step * static_cast<std::size_t>(index));
  const std::size_t end = std::min(job_.count, begin + job_.step);
  if (begin >= end) return;
  try {
    job_.fn(job_.ctx, begin, end);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
}

void HostPool::run(std::size_t count, std::size_t grain, Fn fn, void* ctx) {
  grain = std::max<std::size_t>(grain, 1);
  const auto n = static_cast<std::size_t>(threads());
  const std::size_t share = (count + n - 1) / n;
  job_ = Job{fn, ctx, count, (share + grain - 1) / grain * grain};
  failed_.store(false, std::memory_order_relaxed);
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  do_share(0);
  int spins = 0;
  for (int left = pending_.load(std::memory_order_acquire); left != 0;
       left = pending_.load(std::memory_order_acquire)) {
    if (++spins < kSpins) {
      _mm_pause();
    } else {
      pending_.wait(left, std::memory_order_acquire);
    }
  }
  if (failed_.load(std::memory_order_relaxed)) {
    std::exception_ptr e = std::move(failure_);
    failure_ = nullptr;
    std::rethrow_exception(e);
  }
}

void HostPool::work(int index) {
  unsigned seen = 0;
  for (;;) {
    int spins = 0;
    unsigned now = generation_.load(std::memory_order_acquire);
    while (now == seen) {
      if (++spins < kSpins) {
        _mm_pause();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
      now = generation_.load(std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    do_share(index);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace assay
