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
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

HostPool::~HostPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (auto& w : workers_) w.join();
}

// Takes the next piece and does it; false when none is left.
bool HostPool::do_piece() {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const auto piece = static_cast<std::uint32_t>(ticket);
    const Fn fn = job_.fn.load(std::memory_order_acquire);
    void* const ctx = job_.ctx.load(std::memory_order_acquire);
    const std::size_t count = job_.count.load(std::memory_order_acquire);
    const std::size_t step = job_.step.load(std::memory_order_acquire);
    const std::uint32_t pieces = job_.pieces.load(std::memory_order_acquire);
    if (piece >= pieces) return false;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
    try {
      fn(ctx, step * piece, std::min(count, step * (piece + std::size_t{1})));
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) done_.notify_one();
    return true;
  }
}

void HostPool::run(std::size_t count, std::size_t grain, Fn fn, void* ctx) {
  if (count == 0) return;
  grain = std::max<std::size_t>(grain, 1);
  const std::size_t most = static_cast<std::size_t>(threads()) * kPieces;
  const std::size_t share = (count + most - 1) / most;
  const std::size_t step = (share + grain - 1) / grain * grain;
  const auto pieces = static_cast<std::uint32_t>((count + step - 1) / step);
  const std::uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(number << 32 | kClosed, std::memory_order_relaxed);
  job_.fn.store(fn, std::memory_order_release);
  job_.ctx.store(ctx, std::memory_order_release);
  job_.count.store(count, std::memory_order_release);
  job_.step.store(step, std::memory_order_release);
  job_.pieces.store(pieces, std::memory_order_release);
  failed_.store(false, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(number << 32, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  while (do_piece()) {
  }
  int spins = 0;
  for (std::uint32_t done = done_.load(std::memory_order_acquire); done != pieces;
       done = done_.load(std::memory_order_acquire)) {
    if (++spins < kSpins) {
      _mm_pause();
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
  if (failed_.load(std::memory_order_relaxed)) {
    std::exception_ptr e = std::move(failure_);
    failure_ = nullptr;
    std::rethrow_exception(e);
  }
}

void HostPool::work() {
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
    while (do_piece()) {
    }
  }
}

}  // namespace assay
