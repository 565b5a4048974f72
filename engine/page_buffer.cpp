#include "engine/page_buffer.h"

#include <string>

#include <sys/mman.h>

#include "kernels/base/error.h"

namespace assay {

PageBuffer::PageBuffer(std::size_t bytes, const char* what) : bytes_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    bytes_ = 0;
    throw Error(Exit::kCheckFailed,
                "no memory for " + std::string(what) + ": " + std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<std::byte*>(p);
  // A hint: a system without huge pages ignores it.
  constexpr std::size_t kWorthHugePages = std::size_t{4} << 20;
  if (bytes >= kWorthHugePages) madvise(p, bytes, MADV_HUGEPAGE);
}

void PageBuffer::make_read_only() {
  if (data_ != nullptr) mprotect(data_, bytes_, PROT_READ);
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace assay
