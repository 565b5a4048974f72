// A fixed set of worker threads for host kernels. Work is cut by index into pieces, and whoever is free takes the next
// one: the caller does not wait for a worker that the system has not let run yet. Which thread computes a piece cannot
// change its bits. Workers spin briefly between calls and then sleep: an idle process uses no CPU.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace assay {

class HostPool {
 public:
  // threads: total, the caller included; 1..256. Throws UserError outside that range.
  explicit HostPool(int threads);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // So that a thread that starts late or runs slowly costs a part of its share and not all of it.
  static constexpr int kPieces = 4;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on disjoint ranges that cover [0, count), at most kPieces a thread, each but the last
  // a multiple of `grain`. Blocks until all are done. The first exception of any thread is rethrown here.
  // Not reentrant: body must not call parallel on the same pool.
  template <class F>
  void parallel(std::size_t count, std::size_t grain, F&& body) {
    using Body = std::remove_reference_t<F>;
    run(
        count,
        grain,
        [](void* ctx, std::size_t b, std::size_t e) { (*static_cast<Body*>(ctx))(b, e); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Fn = void (*)(void*, std::size_t, std::size_t);
  void run(std::size_t count, std::size_t grain, Fn fn, void* ctx);
  void work();
  bool do_piece();

  // Written by the caller while the ticket is closed; read by a worker before it takes a piece, so that what it read is
  // this job's if the ticket is still the same.
  struct Job {
    std::atomic<Fn> fn{nullptr};
    std::atomic<void*> ctx{nullptr};
    std::atomic<std::size_t> count{0};
    std::atomic<std::size_t> step{0};
    std::atomic<std::uint32_t> pieces{0};
  };
  static constexpr std::uint32_t kClosed = 0xFFFFFFFFU;  // as a piece's number

  Job job_;
  alignas(64) std::atomic<std::uint64_t> ticket_{kClosed};  // job's number << 32 | next piece
  alignas(64) std::atomic<unsigned> generation_{0};         // what sleeping workers wait on
  alignas(64) std::atomic<std::uint32_t> done_{0};          // pieces of the job
  alignas(64) std::atomic<bool> failed_{false};
  std::atomic<bool> stop_{false};
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

// Runs body over [0, count) on the stream's pool, or inline when there is none.
template <class F>
void parallel_for(HostPool* pool, std::size_t count, std::size_t grain, F&& body) {
  if (count == 0) return;
  if (pool == nullptr || pool->threads() == 1 || count <= grain) {
    body(std::size_t{0}, count);
  } else {
    pool->parallel(count, grain, body);
  }
}

}  // namespace assay
