#include "engine/memory_space.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/wait_limit.h"

namespace assay {
namespace {

std::byte* bytes_of(void* p) { return static_cast<std::byte*>(p); }
const std::byte* bytes_of(const void* p) { return static_cast<const std::byte*>(p); }

}  // namespace

MemorySpace::MemorySpace(Backend backend, int threads) {
  if (backend == Backend::kCuda) {
    device_ = &gpu::device();
    queue_ = std::make_unique<gpu::Queue>();
    steps_ = pointwise::device_steps();
    stream_ = queue_->stream();
    return;
  }
  device_ = &host_device();
  pool_ = std::make_unique<HostPool>(threads);
  steps_ = &pointwise::kHostSteps;
  stream_ = {.pool = pool_.get()};
}

SpaceBuffer MemorySpace::allocate(std::size_t bytes, const char* what) const {
  return on_card() ? SpaceBuffer(gpu::Buffer(bytes)) : SpaceBuffer(PageBuffer(bytes, what));
}

void MemorySpace::put(void* to, const void* from, std::size_t bytes) const {
  if (on_card()) {
    gpu::upload(bytes_of(to), bytes_of(from), bytes, stream_);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

void MemorySpace::copy(void* to, const void* from, std::size_t bytes) const {
  if (on_card()) {
    gpu::copy(bytes_of(to), bytes_of(from), bytes, stream_);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

void MemorySpace::get(void* to, const void* from, std::size_t bytes) const {
  if (on_card()) {
    const WaitLimit limit("the card's results");
    gpu::download(bytes_of(to), bytes_of(from), bytes, stream_);
    queue_->wait();
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace assay
