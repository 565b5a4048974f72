// A file that exists in memory only; the readers under test take paths.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

class MemoryFile {
 public:
  explicit MemoryFile(const char* name)
      : fd_(::memfd_create(name, MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0) std::abort();
  }
  void set(const std::uint8_t* data, std::size_t size) const {
    if (::ftruncate(fd_, 0) != 0) std::abort();
    if (::pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  }
  void truncate(std::size_t size) const {
    if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) std::abort();
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};
