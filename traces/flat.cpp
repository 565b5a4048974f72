#include "traces/flat.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"

namespace assay {
namespace {

constexpr std::size_t kRecord = 24;
constexpr std::size_t kWindow = std::size_t{1} << 20;
constexpr std::uint64_t kMaxObject = 0xFFFFFFFEULL;

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void refuse(const std::string& path, std::uint64_t at, const std::string& what) {
  throw InputError(path + ": byte " + std::to_string(at) + ": " + what);
}

}  // namespace

void read_flat(const std::string& path,
               FlatKind kind,
               const std::function<void(std::span<const std::uint32_t>)>& sink) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) throw InputError(path + ": " + std::strerror(errno));
  struct stat st {};
  if (::fstat(file.fd, &st) != 0 || !S_ISREG(st.st_mode))
    throw InputError(path + ": not a regular file");

  std::vector<char> buffer(kWindow);
  std::vector<std::uint32_t> objects;
  std::size_t held = 0;        // bytes in the buffer that are not consumed
  std::uint64_t consumed = 0;  // bytes of the file before them
  std::uint64_t total = 0;
  bool end = false;
  while (!end) {
    const ssize_t n = ::read(file.fd, buffer.data() + held, buffer.size() - held);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw InputError(path + ": byte " + std::to_string(consumed + held) + ": " +
                       std::strerror(errno));
    end = n == 0;
    held += static_cast<std::size_t>(n);
    objects.clear();
    std::size_t at = 0;
    if (kind == FlatKind::kOracleGeneral) {
      for (; held - at >= kRecord; at += kRecord) {
        std::uint64_t id = 0;
        std::memcpy(&id, buffer.data() + at + 4, 8);
        if (id == 0 || id - 1 > kMaxObject) {
          refuse(path,
                 consumed + at + 4,
                 "object id " + std::to_string(id) + ", expected 1 to 4294967295 (object + 1)");
        }
        objects.push_back(static_cast<std::uint32_t>(id - 1));
      }
      if (end && at != held)
        refuse(
            path, consumed + at, "record cut short: " + std::to_string(held - at) + " of 24 bytes");
    } else {
      for (;;) {
        const char* begin = buffer.data() + at;
        const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', held - at));
        if (newline == nullptr && !(end && held != at)) break;
        const char* stop = newline != nullptr ? newline : buffer.data() + held;
        const char* last = stop > begin && stop[-1] == '\r' ? stop - 1 : stop;
        if (last != begin) {
          std::uint64_t id = 0;
          const auto [parsed, error] = std::from_chars(begin, last, id);
          if (error != std::errc{} || parsed != last || id > kMaxObject) {
            refuse(
                path,
                consumed + at,
                "'" +
                    std::string(begin,
                                std::min<std::size_t>(40, static_cast<std::size_t>(last - begin))) +
                    "' is not an object id (a decimal number from 0 to 4294967294)");
          }
          objects.push_back(static_cast<std::uint32_t>(id));
        }
        at = static_cast<std::size_t>(stop - buffer.data()) + (newline != nullptr ? 1 : 0);
      }
      if (at == 0 && held == buffer.size())
        refuse(path, consumed, "a line of more than a megabyte");
    }
    total += objects.size();
    if (!objects.empty()) sink(objects);
    std::memmove(buffer.data(), buffer.data() + at, held - at);
    held -= at;
    consumed += at;
  }
  if (total == 0) throw InputError(path + ": byte 0: no accesses");
}

FlatWriter::FlatWriter(const std::string& path, FlatKind kind)
    : path_(path),
      kind_(kind),
      fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (fd_ < 0) throw Error(Exit::kCheckFailed, path + ": cannot create: " + std::strerror(errno));
}
FlatWriter::~FlatWriter() {
  if (fd_ >= 0) ::close(fd_);
}
void FlatWriter::append(std::uint32_t object, std::uint32_t time, std::int64_t next) {
  if (kind_ == FlatKind::kIds) {
    char text[16];
    const auto r = std::to_chars(text, text + sizeof text, object);
    buffer_.append(text, r.ptr);
    buffer_ += '\n';
  } else {
    char record[kRecord];
    const std::uint64_t id = std::uint64_t{object} + 1;
    const std::uint32_t size = 1;
    std::memcpy(record, &time, 4);
    std::memcpy(record + 4, &id, 8);
    std::memcpy(record + 12, &size, 4);
    std::memcpy(record + 16, &next, 8);
    buffer_.append(record, kRecord);
  }
  if (buffer_.size() >= kWindow) flush();
}
void FlatWriter::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(Exit::kCheckFailed, path_ + ": cannot write: " + std::strerror(errno));
    done += static_cast<std::size_t>(n);
  }
  buffer_.clear();
}
void FlatWriter::close() {
  flush();
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0)
    throw Error(Exit::kCheckFailed, path_ + ": cannot write: " + std::strerror(errno));
}

}  // namespace assay
