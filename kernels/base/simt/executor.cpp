#include "kernels/base/simt/executor.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <boost/context/fiber.hpp>

thread_local uint3 threadIdx{0, 0, 0};
thread_local uint3 blockIdx{0, 0, 0};
thread_local dim3 blockDim;
thread_local dim3 gridDim;

namespace assay::simt {

thread_local Thread* current = nullptr;

namespace {

namespace ctx = boost::context;

constexpr std::size_t kStackBytes = std::size_t{128} << 10;
constexpr std::size_t kFenceBytes = 64;
constexpr std::byte kFence{0xA5};
constexpr std::byte kPoison{0xFF};

// Stacks that outlive the fibers on them.
class Stacks {
 public:
  ctx::stack_context get(std::size_t i) {
    while (memory_.size() <= i) memory_.emplace_back(new std::byte[kStackBytes]);
    ctx::stack_context s;
    s.size = kStackBytes;
    s.sp = memory_[i].get() + kStackBytes;
    return s;
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<ctx::fiber> fibers;
  std::vector<ctx::fiber> back;  // each thread's way to the scheduler
  std::size_t running = 0;       // index of the current thread
  std::size_t alive = 0;
  std::size_t arrived = 0;
  std::uint64_t generation = 0;
  std::uint64_t progress = 0;
  int gathered = 0;  // of the barrier that is filling
  int result = 0;    // of the last full one
  std::vector<std::byte> shared;
  std::exception_ptr error;
};
thread_local Block* block = nullptr;
thread_local Stacks stacks;
struct PooledStack {
  std::size_t index;
  ctx::stack_context allocate() const { return stacks.get(index); }
  static void deallocate(ctx::stack_context&) noexcept {}
};

void yield() {
  const std::size_t me = block->running;
  block->back[me] = std::move(block->back[me]).resume();
}

[[noreturn]] void fault(const std::string& what) {
  const auto& t = *current;
  throw std::runtime_error("simt: " + what + " (block " + std::to_string(blockIdx.x) + "," +
                           std::to_string(blockIdx.y) + "," + std::to_string(blockIdx.z) +
                           " thread " + std::to_string(t.index.x) + "," +
                           std::to_string(t.index.y) + "," + std::to_string(t.index.z) + ")");
}

int barrier(int value) {
  Block& b = *block;
  b.gathered += value;
  const std::uint64_t mine = b.generation;
  if (++b.arrived == b.threads.size()) {
    b.arrived = 0;
    b.result = b.gathered;
    b.gathered = 0;
    ++b.generation;
    ++b.progress;
  }
  while (b.generation == mine) {
    if (b.alive < b.threads.size()) fault("__syncthreads after some threads of the block returned");
    yield();
  }
  return b.result;
}

void run_block(const std::function<void()>& body, std::size_t shared_bytes) {
  Block& b = *block;
  const std::size_t count = b.threads.size();
  b.alive = count;
  b.arrived = 0;
  b.gathered = 0;
  for (auto& w : b.warps) w.arrived = w.released = 0;
  std::fill(b.shared.begin(), b.shared.end(), kFence);
  std::fill_n(b.shared.begin() + kFenceBytes, shared_bytes, kPoison);
  b.fibers.clear();
  for (std::size_t i = 0; i < count; ++i) {
    b.fibers.emplace_back(
        std::allocator_arg, PooledStack{i}, [&b, &body, i](ctx::fiber&& scheduler) {
          b.back[i] = std::move(scheduler);
          try {
            body();
          } catch (const ctx::detail::forced_unwind&) {
            throw;  // the library's way to end a fiber that is given up
          } catch (...) {
            if (!b.error) b.error = std::current_exception();
          }
          --b.alive;
          ++b.progress;
          return std::move(b.back[i]);
        });
  }
  while (b.alive > 0 && !b.error) {
    const std::uint64_t before = b.progress;
    for (std::size_t i = 0; i < count && !b.error; ++i) {
      if (!b.fibers[i]) continue;
      b.running = i;
      current = &b.threads[i];
      threadIdx = current->index;
      b.fibers[i] = std::move(b.fibers[i]).resume();
    }
    if (b.alive > 0 && b.progress == before && !b.error) {
      current = &b.threads[0];
      try {
        fault("deadlock: a barrier or warp exchange that not every thread reaches");
      } catch (...) {
        b.error = std::current_exception();
      }
    }
  }
  b.fibers.clear();  // unwinds what is still waiting
  current = nullptr;
  if (b.error) std::rethrow_exception(b.error);
  for (std::size_t i = 0; i < b.shared.size(); ++i) {
    const bool inside = i >= kFenceBytes && i < kFenceBytes + shared_bytes;
    if (!inside && b.shared[i] != kFence) {
      throw std::runtime_error("simt: write outside the dynamic shared memory, at byte " +
                               std::to_string(static_cast<std::ptrdiff_t>(i) -
                                              static_cast<std::ptrdiff_t>(kFenceBytes)));
    }
  }
}

}  // namespace

void Warp::wait(int lane, unsigned mask) {
  const unsigned bit = 1U << lane;
  if ((mask & bit) == 0) fault("a lane outside its own mask");
  arrived |= bit;
  if ((arrived & mask) == mask) {
    released |= mask;
    arrived &= ~mask;
    ++block->progress;
  }
  while ((released & bit) == 0) yield();
  released &= ~bit;
}

unsigned ballot(unsigned mask, bool value) {
  Warp& w = *current->warp;
  const int lane = current->lane;
  w.slot[lane][0] = value ? 1 : 0;
  w.wait(lane, mask);
  unsigned bits = 0;
  for (int i = 0; i < kWarpSize; ++i) {
    if ((mask >> i & 1U) != 0 && w.slot[i][0] != 0) bits |= 1U << i;
  }
  w.wait(lane, mask);
  return bits;
}

void block_barrier() { barrier(0); }
int block_barrier_or(int value) { return barrier(value != 0 ? 1 : 0) != 0 ? 1 : 0; }
int block_barrier_count(int value) { return barrier(value != 0 ? 1 : 0); }

std::byte* dynamic_shared_memory() { return block->shared.data() + kFenceBytes; }

void run_grid(dim3 grid, dim3 size, std::size_t shared_bytes, const std::function<void()>& body) {
  if (block != nullptr) throw std::logic_error("simt: a kernel launches a kernel");
  const std::size_t count = static_cast<std::size_t>(size.x) * size.y * size.z;
  if (count == 0 || count > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 ||
      grid.z > 65535) {
    throw std::runtime_error("simt: launch with an illegal grid or block size");
  }
  // 227 KB: the largest limit of the supported cards.
  if (shared_bytes > 227 * 1024) throw std::runtime_error("simt: too much shared memory a block");
  Block b;
  b.threads.resize(count);
  b.back.resize(count);
  b.warps.resize((count + kWarpSize - 1) / kWarpSize);
  b.shared.resize(shared_bytes + 2 * kFenceBytes);
  std::size_t i = 0;
  for (unsigned z = 0; z < size.z; ++z) {
    for (unsigned y = 0; y < size.y; ++y) {
      for (unsigned x = 0; x < size.x; ++x, ++i) {
        b.threads[i] = {{x, y, z}, static_cast<int>(i % kWarpSize), &b.warps[i / kWarpSize]};
      }
    }
  }
  block = &b;
  blockDim = size;
  gridDim = grid;
  try {
    for (unsigned z = 0; z < grid.z; ++z) {
      for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = {x, y, z};
          run_block(body, shared_bytes);
        }
      }
    }
  } catch (...) {
    block = nullptr;
    throw;
  }
  block = nullptr;
}

}  // namespace assay::simt
