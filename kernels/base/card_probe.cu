// The kernels of card_probe.h. Device clocks count nanoseconds (globaltimer) only in steps of up to a microsecond, so one launch
// does many exchanges and their mean is one sample.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "kernels/base/card_probe.h"
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/launch.cuh"

namespace assay::gpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPasses = 5;
constexpr int kThreads = 512;
// Polls before a kernel gives up on the host, some seconds: a lost answer must not hang the card. The executor's polls take
// a nanosecond, and its other thread may wait for a core.
constexpr long long kPolls = 20'000'000;
constexpr long long kExecutedPolls = 20'000'000'000;
constexpr auto kPatience = std::chrono::seconds(10);

double us_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}
double middle(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

__global__ void empty_kernel() {}

// Four loads a thread in flight; the sum is stored only when it has a value that it cannot have, so no load is dropped.
__global__ void read_kernel(const uint4* data, std::size_t count, unsigned* out) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = data[i + static_cast<std::size_t>(k) * step];
#pragma unroll
    for (int k = 0; k < 4; ++k) sum |= v[k].x | v[k].y | v[k].z | v[k].w;
  }
  for (; i < count; i += step) sum |= data[i].x | data[i].y | data[i].z | data[i].w;
  if (sum == 1U) *out = sum;
}

// Rings `exchanges` times: stores a number and waits until the host has stored it back. `lost` gets the first number that
// stayed without answer.
__global__ void ring_kernel(volatile std::int32_t* bell,
                            const volatile std::int32_t* answer,
                            std::int32_t* number,
                            int exchanges,
                            long long most_polls,
                            std::int32_t* lost) {
  std::int32_t n = *number;
  for (int e = 0; e < exchanges; ++e) {
    ++n;
    *bell = n;
    long long polls = 0;
    while (*answer != n) {
      if (++polls > most_polls) {
        *lost = n;
        *number = n;
        return;
      }
    }
  }
  *number = n;
}

// The host's half: answers every number it sees until told to stop.
class Answerer {
 public:
  Answerer(std::byte* bell, std::byte* answer)
      : thread_([this, bell, answer] {
          std::atomic_ref<std::int32_t> in(*reinterpret_cast<std::int32_t*>(bell));
          std::atomic_ref<std::int32_t> out(*reinterpret_cast<std::int32_t*>(answer));
          std::int32_t seen = 0;
          while (!stop_.load(std::memory_order_relaxed)) {
            const std::int32_t now = in.load(std::memory_order_acquire);
            if (now == seen) continue;
            seen = now;
            out.store(now, std::memory_order_release);
          }
        }) {}
  ~Answerer() {
    stop_ = true;
    thread_.join();
  }
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::size_t probe_bytes() {
  const std::size_t far_over_cache = std::size_t{16} * static_cast<std::size_t>(device().l2_bytes);
  return std::min(far_over_cache, memory().free_bytes / 4) / 4096 * 4096;
}

}  // namespace

double read_bandwidth() {
  Queue queue;
  Buffer data(probe_bytes());
  DeviceBuffer<unsigned> out(1);
  fill(data.data(), std::byte{0}, data.bytes(), queue.stream());
  const auto blocks = simulated() ? 1U : static_cast<unsigned>(device().multiprocessors) * 4U;
  Event start;
  Event stop;
  std::vector<double> rates;
  for (int pass = 0; pass <= kPasses; ++pass) {
    start.record(queue.stream());
    launch(read_kernel,
           dim3(blocks),
           dim3(kThreads),
           0,
           queue.stream(),
           reinterpret_cast<const uint4*>(data.data()),
           data.bytes() / sizeof(uint4),
           out.data());
    stop.record(queue.stream());
    stop.wait();
    if (pass > 0) rates.push_back(static_cast<double>(data.bytes()) * 1e6 / stop.us_since(start));
  }
  return middle(rates);
}

double copy_bandwidth() {
  Queue queue;
  Buffer from(probe_bytes());
  Buffer to(from.bytes());
  fill(from.data(), std::byte{0}, from.bytes(), queue.stream());
  Event start;
  Event stop;
  std::vector<double> rates;
  for (int pass = 0; pass <= kPasses; ++pass) {
    start.record(queue.stream());
    copy(to.data(), from.data(), from.bytes(), queue.stream());
    stop.record(queue.stream());
    stop.wait();
    if (pass > 0)
      rates.push_back(2.0 * static_cast<double>(from.bytes()) * 1e6 / stop.us_since(start));
  }
  return middle(rates);
}

LaunchCost launch_cost(int rounds) {
  constexpr int kNodes = 300;
  Queue queue;
  const Stream s = queue.stream();
  const auto empty = [&] { launch(empty_kernel, dim3(1), dim3(32), 0, s); };
  Event start;
  Event stop;
  std::vector<double> floor;
  std::vector<double> queued;
  std::vector<double> waited;
  std::vector<double> node;
  empty();
  queue.wait();
  const Graph graph = Graph::capture(s, [&] {
    for (int i = 0; i < kNodes; ++i) empty();
  });
  for (int r = 0; r < rounds; ++r) {
    start.record(s);
    stop.record(s);
    stop.wait();
    floor.push_back(stop.us_since(start));
    const auto before = Clock::now();
    empty();
    const auto after = Clock::now();
    queue.wait();
    queued.push_back(us_between(before, after));
    waited.push_back(us_between(before, Clock::now()));
    graph.launch(s);
    start.record(s);
    graph.launch(s);
    stop.record(s);
    stop.wait();
    node.push_back(stop.us_since(start) / kNodes);
  }
  return {middle(floor), middle(queued), middle(waited), middle(node)};
}

Handshake handshake(int exchanges, int graphs) {
  // The executor runs a kernel inside the launch, where the answering thread works as it does beside a card.
  constexpr int kExchanges = 64;  // of one launch
  Handshake result;
  Queue queue;
  const Stream s = queue.stream();
  // Cache lines of their own: neither side may find the other's number by chance of a neighbour.
  Buffer mapped(8192, Place::kMapped);
  std::fill(mapped.data(), mapped.data() + mapped.bytes(), std::byte{0});
  Buffer own(8);
  fill(own.data(), std::byte{0}, own.bytes(), s);
  queue.wait();
  auto* bell = reinterpret_cast<volatile std::int32_t*>(mapped.device_data());
  const auto* answer = reinterpret_cast<const volatile std::int32_t*>(mapped.device_data() + 4096);
  auto* number = reinterpret_cast<std::int32_t*>(own.data());
  auto* lost = number + 1;
  const long long most_polls = simulated() ? kExecutedPolls : kPolls;
  const auto ring = [&](int count) {
    launch(ring_kernel, dim3(1), dim3(1), 0, s, bell, answer, number, count, most_polls, lost);
  };
  const auto check = [&](const char* what) {
    std::int32_t state[2] = {};
    download(reinterpret_cast<std::byte*>(state), own.data(), sizeof state, s);
    queue.wait();
    if (state[1] != 0)
      throw CheckError(std::string("handshake, ") + what + ": no answer to number " +
                       std::to_string(state[1]) + " within " + std::to_string(most_polls) +
                       " polls");
  };
  Event start;
  Event stop;
  {
    const Answerer answerer(mapped.data(), mapped.data() + 4096);
    ring(kExchanges);  // brings the code to the card
    check("first launch");
    for (int done = 0; done < exchanges; done += kExchanges) {
      start.record(s);
      ring(kExchanges);
      stop.record(s);
      stop.wait();
      result.round_trip_us.push_back(stop.us_since(start) / kExchanges);
    }
    check("round trip");
    const double node_us = launch_cost(8).node_us;
    const Graph graph = Graph::capture(s, [&] {
      for (int i = 0; i < result.nodes; ++i) ring(1);
    });
    for (int g = 0; g <= graphs; ++g) {
      start.record(s);
      graph.launch(s);
      stop.record(s);
      stop.wait();
      if (g > 0) result.layer_us.push_back(stop.us_since(start) / result.nodes - node_us);
    }
    check("graph");
  }
  // The other way round: the host keeps the clock. The kernel answers what the host stores.
  std::int32_t first = 0;
  download(reinterpret_cast<std::byte*>(&first), own.data(), sizeof first, s);
  queue.wait();
  const std::atomic_ref<std::int32_t> rung(*reinterpret_cast<std::int32_t*>(mapped.data()));
  const std::atomic_ref<std::int32_t> reply(*reinterpret_cast<std::int32_t*>(mapped.data() + 4096));
  if (simulated()) return result;  // there a launch returns when its kernel has ended
  ring(exchanges);
  const auto deadline = Clock::now() + kPatience;
  auto sent = Clock::now();
  for (std::int32_t n = first + 1; n <= first + exchanges; ++n) {
    while (rung.load(std::memory_order_acquire) != n) {
      if (Clock::now() > deadline)
        throw CheckError("handshake, host's clock: number " + std::to_string(n) + " did not come");
    }
    const auto now = Clock::now();
    if (n > first + 1) result.host_round_trip_us.push_back(us_between(sent, now));
    sent = Clock::now();
    reply.store(n, std::memory_order_release);
  }
  check("host's clock");
  return result;
}

}  // namespace assay::gpu
