// A large block of anonymous memory: zeroed, page-aligned, in huge pages where the system allows them. Pages become
// resident when they are first touched.
#pragma once
#include <cstddef>
#include <utility>

namespace assay {

class PageBuffer {
 public:
  PageBuffer() = default;
  // Throws Error (exit 1) naming `what` and the size when the system has not that much address space.
  PageBuffer(std::size_t bytes, const char* what);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PageBuffer& operator=(PageBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // From now on a store into it is a fault of the process. Never fails: a system that cannot protect leaves it writable.
  void make_read_only();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace assay
