// What a launch runs on: a backend's queue plus, on the host, the thread pool; and its scratch memory.
#pragma once
#include <cstddef>
#include <cstdint>

// Declared once, at global scope: first named inside a namespace it would become another type.
struct CUstream_st;

namespace assay {

class HostPool;

enum class Backend : std::uint8_t { kHost, kCuda };
const char* to_string(Backend backend);

// The two numerics lanes. kFast is a permission to quantise activations, not an order.
enum class Numerics : std::uint8_t { kExact, kFast };
const char* to_string(Numerics numerics);

// A queue. On the host, work runs at once on `pool` (null: on the calling thread only).
struct Stream {
  CUstream_st* cuda = nullptr;
  HostPool* pool = nullptr;
};

// Scratch handed to a launch: at least Op::workspace_bytes(shape) bytes, 256-byte aligned, contents undefined.
struct Workspace {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace assay
