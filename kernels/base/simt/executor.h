// Runs CUDA sources on the CPU, for tests on machines without a GPU. A block's threads are fibers of one OS thread that
// take turns at barriers and warp exchanges; blocks run one after the other. What it shows: indexing, barriers, shuffles,
// the order of float operations, every byte of the result. What it cannot show: races between threads that happen not to
// be separated by a turn, memory ordering, speed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};

// The built-in variables, set whenever another thread of the block takes its turn.
extern thread_local uint3 threadIdx;
extern thread_local uint3 blockIdx;
extern thread_local dim3 blockDim;
extern thread_local dim3 gridDim;

namespace assay::simt {

constexpr int kWarpSize = 32;

// A warp's meeting place.
struct Warp {
  unsigned arrived = 0;
  unsigned released = 0;
  unsigned char slot[kWarpSize][16];
  void wait(int lane, unsigned mask);
};

// The running thread of the block.
struct Thread {
  uint3 index;
  int lane;
  Warp* warp;
};
extern thread_local Thread* current;

// Runs body once per thread of the grid. Throws what a thread throws; throws for a barrier that not every thread of the
// block reaches, a warp exchange that not every named lane reaches, and a write past the dynamic shared memory.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

std::byte* dynamic_shared_memory();
void block_barrier();
// Barrier; non-zero in every thread when any passed non-zero.
int block_barrier_or(int value);
int block_barrier_count(int value);

// `value` of lane `source` (own when it is not in the mask).
template <class T>
T exchange(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 16);
  Warp& w = *current->warp;
  const int lane = current->lane;
  std::memcpy(w.slot[lane], &value, sizeof(T));
  w.wait(lane, mask);
  T got;
  std::memcpy(&got, w.slot[source & (kWarpSize - 1)], sizeof(T));
  w.wait(lane, mask);  // nobody overwrites a slot that is still to be read
  return got;
}
// Bits of the lanes in the mask that passed true.
unsigned ballot(unsigned mask, bool value);

}  // namespace assay::simt
