#include "replay/spill.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <unistd.h>

#include "kernels/base/error.h"

namespace assay::replay {
namespace {

[[noreturn]] void fail(const char* step) {
  throw Error(Exit::kCheckFailed,
              std::string("temporary file: cannot ") + step + ": " + std::strerror(errno));
}

}  // namespace

Spill::Spill(std::uint64_t entries, std::uint64_t memory_entries)
    : entries_(entries), memory_entries_(memory_entries) {
  if (entries <= memory_entries) {
    memory_.resize(static_cast<std::size_t>(entries));
  } else {
    move_to_file();
  }
}

void Spill::move_to_file() {
  file_.reset(std::tmpfile());
  if (file_ == nullptr) fail("create");
  if (!memory_.empty()) write(0, memory_);
  memory_ = {};
}

void Spill::append(std::span<const std::uint32_t> values) {
  const std::uint64_t at = entries_;
  entries_ += values.size();
  if (file_ == nullptr && entries_ > memory_entries_) {
    entries_ = at;
    move_to_file();
    entries_ += values.size();
  }
  if (file_ == nullptr) {
    memory_.insert(memory_.end(), values.begin(), values.end());
  } else {
    write(at, values);
  }
}

void Spill::write(std::uint64_t at, std::span<const std::uint32_t> values) {
  if (at + values.size() > entries_) throw std::out_of_range("Spill::write");
  if (file_ == nullptr) {
    std::copy(values.begin(), values.end(), memory_.begin() + static_cast<std::ptrdiff_t>(at));
    return;
  }
  const char* p = reinterpret_cast<const char*>(values.data());
  std::size_t left = values.size_bytes();
  auto offset = static_cast<off_t>(at * 4);
  while (left > 0) {
    const ssize_t n = ::pwrite(::fileno(file_.get()), p, left, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    p += n;
    offset += n;
    left -= static_cast<std::size_t>(n);
  }
}

void Spill::read(std::uint64_t at, std::span<std::uint32_t> values) const {
  if (at + values.size() > entries_) throw std::out_of_range("Spill::read");
  if (file_ == nullptr) {
    std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(at), values.size(), values.begin());
    return;
  }
  char* p = reinterpret_cast<char*>(values.data());
  std::size_t left = values.size_bytes();
  auto offset = static_cast<off_t>(at * 4);
  while (left > 0) {
    const ssize_t n = ::pread(::fileno(file_.get()), p, left, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("read");
    p += n;
    offset += n;
    left -= static_cast<std::size_t>(n);
  }
}

}  // namespace assay::replay
