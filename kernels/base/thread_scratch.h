// Memory that a host kernel's thread keeps between calls: grown when a larger shape first arrives, never in a steady
// state, so that a launch does not allocate.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace assay {

// n elements of T, 64-byte aligned, contents undefined; valid until this thread's next call with the same T and Tag.
template <class T, class Tag>
T* thread_scratch(std::size_t n) {
  thread_local std::vector<std::byte> buffer;
  if (buffer.size() < n * sizeof(T) + 64) buffer.resize(n * sizeof(T) + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
  return reinterpret_cast<T*>(buffer.data() + (64 - address % 64) % 64);
}

}  // namespace assay
