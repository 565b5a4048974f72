// GPU memory, queues and graphs for code that is compiled without CUDA headers: parity, bench, engine. In a build without
// CUDA the same functions exist and throw HardwareError; unavailable() says why before anything is tried.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "kernels/base/device_info.h"
#include "kernels/base/registry.h"
#include "kernels/base/stream.h"

struct CUevent_st;
struct CUgraphExec_st;

namespace assay::gpu {

// Why no GPU can be used here (not built, no driver, no device, architecture not compiled in); null when one can.
Why unavailable();
// The GPU of this process (the first one that the driver shows). HardwareError with the reason when unavailable.
const DeviceInfo& device();
// Whether "the GPU" is the CPU executor (preset simt).
bool simulated();

struct MemoryState {
  std::size_t free_bytes = 0;  // of the whole card, other processes counted in
  std::size_t total_bytes = 0;
  std::size_t held_bytes = 0;     // by this process's buffers
  std::size_t peak_bytes = 0;     // largest held_bytes so far
  std::uint64_t allocations = 0;  // ever made by this process's buffers
};
MemoryState memory();
// For tests: the n-th device allocation from now on fails as if the card were full (1: the next). 0: never.
void fail_allocation(std::uint64_t n);

enum class Place : std::uint8_t {
  kDevice,
  kPinned,  // host memory that the card copies from and to without staging
  kMapped,  // pinned, and addressable by kernels (device_data)
};

// Memory of one place, freed with its owner. Aligned to 256 bytes (device) or a page. Contents undefined.
class Buffer {
 public:
  Buffer() = default;
  // Error naming the bytes asked for and the bytes free when the card (or host) is full.
  explicit Buffer(std::size_t bytes, Place place = Place::kDevice);
  ~Buffer();
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    Buffer(std::move(o)).swap(*this);
    return *this;
  }
  std::byte* data() const { return data_; }
  // Where kernels see a kMapped buffer; data() for device memory.
  std::byte* device_data() const { return device_data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(device_data_, o.device_data_);
    std::swap(bytes_, o.bytes_);
    std::swap(place_, o.place_);
  }
  std::byte* data_ = nullptr;
  std::byte* device_data_ = nullptr;
  std::size_t bytes_ = 0;
  Place place_ = Place::kDevice;
};

// Typed device memory.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t count) : buffer_(count * sizeof(T)), count_(count) {}
  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  std::size_t size() const { return count_; }

 private:
  Buffer buffer_;
  std::size_t count_ = 0;
};

// A stream of its own, not ordered with the default one.
class Queue {
 public:
  Queue();
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  Stream stream() const { return {.cuda = stream_, .pool = nullptr}; }
  // Blocks until everything queued is done; a failed kernel surfaces here as CudaError.
  void wait();

 private:
  CUstream_st* stream_ = nullptr;
};

// Queued copies. Host memory that is not pinned is read or written before the call returns.
void upload(std::byte* device, const std::byte* host, std::size_t bytes, Stream stream);
void download(std::byte* host, const std::byte* device, std::size_t bytes, Stream stream);
void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream);
void fill(std::byte* device, std::byte value, std::size_t bytes, Stream stream);

// A point in a queue, with its time.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Stream stream);
  void wait();  // until the queue has passed it
  // Microseconds from `start` to this; both recorded, this one waited for.
  double us_since(const Event& start) const;

 private:
  CUevent_st* event_ = nullptr;
};

// What `body` queues on the stream, as one launchable graph. While it is recorded every call that allocates, synchronises
// or touches the default stream, on any thread, is an error (CudaError naming it): capture is also the proof that a launch
// does none of these.
class Graph {
 public:
  Graph() = default;
  static Graph capture(Stream stream, const std::function<void()>& body);
  ~Graph();
  Graph(Graph&& o) noexcept : exec_(std::exchange(o.exec_, nullptr)), nodes_(o.nodes_) {}
  Graph& operator=(Graph&& o) noexcept {
    std::swap(exec_, o.exec_);
    std::swap(nodes_, o.nodes_);
    return *this;
  }
  void launch(Stream stream) const;
  std::size_t nodes() const { return nodes_; }
  explicit operator bool() const { return exec_ != nullptr; }

 private:
  CUgraphExec_st* exec_ = nullptr;
  std::size_t nodes_ = 0;
};

// Overwrites more than the card's last-level cache, so that what follows reads memory. Needs a buffer of
// cache_flush_bytes().
std::size_t cache_flush_bytes();
void flush_cache(Buffer& scratch, Stream stream);

}  // namespace assay::gpu
