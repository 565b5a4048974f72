#include "kernels/base/gpu_memory.h"

#include <atomic>
#include <string>
#include <vector>

#include "kernels/base/cuda.h"
#include "kernels/base/error.h"

namespace assay::gpu {
namespace {

#if defined(ASSAY_SIMT)
constexpr bool kSimulated = true;
#else
constexpr bool kSimulated = false;
#endif

std::atomic<std::size_t> held{0};
std::atomic<std::size_t> peak{0};
std::atomic<std::uint64_t> made{0};
std::atomic<std::uint64_t> fail_at{0};

struct Found {
  DeviceInfo info;
  std::string reason;  // empty when usable
};

// Without CUDA calls that would fail later with a less clear message.
Found look() {
  Found found;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    found.reason = error == cudaErrorInsufficientDriver
                       ? "no NVIDIA driver, or one too old for this build's CUDA runtime"
                       : std::string("no usable GPU: ") + cudaGetErrorString(error);
    return found;
  }
  if (count == 0) {
    found.reason = "no NVIDIA GPU";
    return found;
  }
  cudaDeviceProp p{};
  if (cudaGetDeviceProperties(&p, 0) != cudaSuccess || cudaSetDevice(0) != cudaSuccess) {
    found.reason =
        std::string("the GPU cannot be opened: ") + cudaGetErrorString(cudaGetLastError());
    return found;
  }
  DeviceInfo& d = found.info;
  d.backend = Backend::kCuda;
  d.name = p.name;
  d.threads = host_device().threads;
  d.cc = p.major * 10 + p.minor;
  d.multiprocessors = p.multiProcessorCount;
  d.shared_bytes_per_block = static_cast<int>(p.sharedMemPerBlockOptin);
  d.l2_bytes = p.l2CacheSize;
  d.memory_bytes = p.totalGlobalMem;
  const std::string card = d.name + " (compute capability " + std::to_string(p.major) + "." +
                           std::to_string(p.minor) + ")";
  if (d.cc < 75) {
    found.reason = card + ": compute capability 7.5 or newer is needed";
    return found;
  }
  if (const Why why = cuda_detail::why_no_code()) found.reason = card + ": " + why;
  return found;
}

const Found& found() {
  static const Found f = look();
  return f;
}

void need_device() {
  if (const Why why = unavailable()) throw HardwareError(why);
}

std::string mib(std::size_t bytes) {
  return std::to_string(bytes) + " bytes (" + std::to_string(bytes >> 20) + " MiB)";
}

[[noreturn]] void out_of_memory(std::size_t bytes, const char* what) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  (void)cudaGetLastError();
  (void)cudaMemGetInfo(&free_bytes, &total);
  throw Error(Exit::kCheckFailed,
              std::string(what) + " full: " + mib(bytes) + " asked for, " + mib(free_bytes) +
                  " free of " + mib(total) + " on the card");
}

}  // namespace

Why unavailable() { return found().reason.empty() ? nullptr : found().reason.c_str(); }

const DeviceInfo& device() {
  need_device();
  return found().info;
}

bool simulated() { return kSimulated; }

MemoryState memory() {
  need_device();
  MemoryState m;
  ASSAY_CUDA(cudaMemGetInfo(&m.free_bytes, &m.total_bytes));
  m.held_bytes = held;
  m.peak_bytes = peak;
  m.allocations = made;
  return m;
}

void fail_allocation(std::uint64_t n) { fail_at = n; }

Buffer::Buffer(std::size_t bytes, Place place) : bytes_(bytes), place_(place) {
  need_device();
  if (bytes == 0) return;
  void* p = nullptr;
  if (place == Place::kDevice) {
    std::uint64_t left = fail_at;
    const bool refuse = left > 0 && (fail_at = left - 1) == 0;
    const cudaError_t error = refuse ? cudaErrorMemoryAllocation : cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) out_of_memory(bytes, "device memory");
    ASSAY_CUDA(error);
    device_data_ = static_cast<std::byte*>(p);
    ++made;
    const std::size_t now = held += bytes;
    for (std::size_t before = peak; now > before && !peak.compare_exchange_weak(before, now);) {
    }
  } else {
    const unsigned flags =
        place == Place::kMapped ? unsigned{cudaHostAllocMapped} : unsigned{cudaHostAllocDefault};
    const cudaError_t error = cudaHostAlloc(&p, bytes, flags);
    if (error == cudaErrorMemoryAllocation) out_of_memory(bytes, "pinned host memory");
    ASSAY_CUDA(error);
    if (place == Place::kMapped) {
      void* seen = nullptr;
      ASSAY_CUDA(cudaHostGetDevicePointer(&seen, p, 0));
      device_data_ = static_cast<std::byte*>(seen);
    }
  }
  data_ = static_cast<std::byte*>(p);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (place_ == Place::kDevice) {
    held -= bytes_;
    ASSAY_CUDA_NOTHROW(cudaFree(data_));
  } else {
    ASSAY_CUDA_NOTHROW(cudaFreeHost(data_));
  }
}

Queue::Queue() {
  need_device();
  ASSAY_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  (void)cublas_on(stream());  // now, so that no launch has to make it
}
Queue::~Queue() { ASSAY_CUDA_NOTHROW(cudaStreamDestroy(stream_)); }
void Queue::wait() { ASSAY_CUDA(cudaStreamSynchronize(stream_)); }

void upload(std::byte* device, const std::byte* host, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  ASSAY_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream.cuda));
}
void download(std::byte* host, const std::byte* device, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  ASSAY_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream.cuda));
}
void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  ASSAY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.cuda));
}
void fill(std::byte* device, std::byte value, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  ASSAY_CUDA(cudaMemsetAsync(device, static_cast<int>(value), bytes, stream.cuda));
}

Event::Event() {
  need_device();
  ASSAY_CUDA(cudaEventCreate(&event_));
}
Event::~Event() { ASSAY_CUDA_NOTHROW(cudaEventDestroy(event_)); }
void Event::record(Stream stream) { ASSAY_CUDA(cudaEventRecord(event_, stream.cuda)); }
void Event::wait() { ASSAY_CUDA(cudaEventSynchronize(event_)); }
double Event::us_since(const Event& start) const {
  float ms = 0.0F;
  ASSAY_CUDA(cudaEventElapsedTime(&ms, start.event_, event_));
  return 1000.0 * static_cast<double>(ms);
}

Graph Graph::capture(Stream stream, const std::function<void()>& body) {
  ASSAY_CUDA(cudaStreamBeginCapture(stream.cuda, cudaStreamCaptureModeGlobal));
  cudaGraph_t graph = nullptr;
  try {
    body();
  } catch (...) {
    (void)cudaStreamEndCapture(stream.cuda, &graph);
    (void)cudaGetLastError();
    if (graph != nullptr) ASSAY_CUDA_NOTHROW(cudaGraphDestroy(graph));
    throw;
  }
  ASSAY_CUDA(cudaStreamEndCapture(stream.cuda, &graph));
  Graph made_graph;
  std::size_t nodes = 0;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&made_graph.exec_, graph, 0);
  ASSAY_CUDA_NOTHROW(cudaGraphDestroy(graph));
  ASSAY_CUDA(error);
  made_graph.nodes_ = nodes;
  return made_graph;
}
Graph::~Graph() {
  if (exec_ != nullptr) ASSAY_CUDA_NOTHROW(cudaGraphExecDestroy(exec_));
}
void Graph::launch(Stream stream) const { ASSAY_CUDA(cudaGraphLaunch(exec_, stream.cuda)); }

std::size_t cache_flush_bytes() {
  return 4 * static_cast<std::size_t>(device().l2_bytes) + (std::size_t{16} << 20);
}
void flush_cache(Buffer& scratch, Stream stream) {
  fill(scratch.data(), std::byte{0x5A}, scratch.bytes(), stream);
}

}  // namespace assay::gpu
