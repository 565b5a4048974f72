// Where a model's weights, caches and activations lie, and the queue on which work on them runs: the host with its threads,
// or the card. Code above asks nothing else about the backend.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/page_buffer.h"
#include "kernels/base/device_info.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/stream.h"
#include "kernels/pointwise/steps.h"

namespace assay {

// Memory of a space, 64-byte aligned, freed with its owner. On the host zeroed, on a card undefined.
class SpaceBuffer {
 public:
  SpaceBuffer() = default;
  explicit SpaceBuffer(PageBuffer host) : host_(std::move(host)) {}
  explicit SpaceBuffer(gpu::Buffer card) : card_(std::move(card)) {}
  std::byte* data() const { return host_.data() != nullptr ? host_.data() : card_.data(); }
  std::size_t bytes() const { return host_.bytes() + card_.bytes(); }
  // From now on a store is a fault of the process; on a card nothing can hold it back.
  void make_read_only() { host_.make_read_only(); }

 private:
  PageBuffer host_;
  gpu::Buffer card_;
};

class MemorySpace {
 public:
  // threads: of the host's pool. HardwareError when there is no usable card.
  MemorySpace(Backend backend, int threads);

  bool on_card() const { return queue_ != nullptr; }
  const DeviceInfo& device() const { return *device_; }
  Stream stream() const { return stream_; }
  const pointwise::Steps& steps() const { return *steps_; }

  // Error naming `what` or the bytes asked for and free when there is not enough.
  SpaceBuffer allocate(std::size_t bytes, const char* what) const;
  // From host memory into the space; `from` may be reused at once.
  void put(void* to, const void* from, std::size_t bytes) const;
  // Within the space, in the queue's order.
  void copy(void* to, const void* from, std::size_t bytes) const;
  // From the space into host memory; waits for the queue.
  void get(void* to, const void* from, std::size_t bytes) const;
  // n elements of the space where the host can read them: themselves, or `copy` filled with them.
  template <class T>
  const T* view(const T* from, std::size_t n, std::vector<T>& copy) const {
    if (!on_card()) return from;
    copy.resize(n);
    get(copy.data(), from, n * sizeof(T));
    return copy.data();
  }

 private:
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<gpu::Queue> queue_;
  const DeviceInfo* device_;
  const pointwise::Steps* steps_;
  Stream stream_;
};

}  // namespace assay
