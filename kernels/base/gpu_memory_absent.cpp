// The functions of gpu_memory.h in a build without CUDA.
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"

namespace assay::gpu {
namespace {

constexpr const char* kReason = "this build has no CUDA (configure with the preset 'cuda')";
[[noreturn]] void absent() { throw HardwareError(kReason); }

}  // namespace

Why unavailable() { return kReason; }
const DeviceInfo& device() { absent(); }
bool simulated() { return false; }
MemoryState memory() { absent(); }
void fail_allocation(std::uint64_t) {}
Buffer::Buffer(std::size_t, Place) { absent(); }
Buffer::~Buffer() = default;
Queue::Queue() { absent(); }
Queue::~Queue() = default;
void Queue::wait() { absent(); }
void upload(std::byte*, const std::byte*, std::size_t, Stream) { absent(); }
void download(std::byte*, const std::byte*, std::size_t, Stream) { absent(); }
void copy(std::byte*, const std::byte*, std::size_t, Stream) { absent(); }
void fill(std::byte*, std::byte, std::size_t, Stream) { absent(); }
Event::Event() { absent(); }
Event::~Event() = default;
void Event::record(Stream) { absent(); }
void Event::wait() { absent(); }
double Event::us_since(const Event&) const { absent(); }
Graph Graph::capture(Stream, const std::function<void()>&) { absent(); }
Graph::~Graph() = default;
void Graph::launch(Stream) const { absent(); }
std::size_t cache_flush_bytes() { absent(); }
void flush_cache(Buffer&, Stream) { absent(); }

}  // namespace assay::gpu
