#include "kernels/base/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"

namespace assay {
namespace {

using FileId = std::pair<dev_t, ino_t>;

std::set<FileId>& inputs() {
  static std::set<FileId> set;
  return set;
}

}  // namespace

OutputTarget output_target(const std::string& path) {
  if (path.empty()) throw UserError("an output file needs a name");
  OutputTarget target{path, false};
  struct stat st {};
  for (int links = 0; ::lstat(target.path.c_str(), &st) == 0 && S_ISLNK(st.st_mode); ++links) {
    std::error_code error;
    const auto to = std::filesystem::read_symlink(target.path, error);
    if (error || links == 40) throw UserError(path + ": a link that leads nowhere");
    target.path = (std::filesystem::path(target.path).parent_path() / to).string();
  }
  struct stat named {};
  const bool by_name = ::stat(target.path.c_str(), &named) == 0;
  if (::stat(path.c_str(), &st) != 0) return target;
  // What a link under /proc/self/fd opens may have no name, or another file may have it by now.
  const bool same = by_name && named.st_dev == st.st_dev && named.st_ino == st.st_ino;
  if (S_ISDIR(st.st_mode)) throw UserError(path + ": is a folder, a file name is needed");
  if (inputs().count({st.st_dev, st.st_ino}) != 0)
    throw UserError(path + ": is an input of this run; choose another output file");
  target.in_place = !same || !S_ISREG(st.st_mode);
  if (target.in_place) target.path = path;
  return target;
}

void protect_input(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode))
    inputs().insert({st.st_dev, st.st_ino});
}

OutputFile::OutputFile(const std::string& path) : path_(path), target_(output_target(path)) {
  if (target_.in_place) {
    fd_ = ::open(target_.path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  } else {
    temporary_ = target_.path + ".tmp." + std::to_string(::getpid());
    // Should a FIFO have that name, it is an error instead of a wait.
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
  }
  if (fd_ < 0) fail("create");
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* step) const {
  throw Error(Exit::kCheckFailed, path_ + ": cannot " + step + ": " + std::strerror(errno));
}

void OutputFile::write(const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void OutputFile::finish() {
  if (!target_.in_place && ::fsync(fd_) != 0) fail("sync");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail("close");
  if (target_.in_place) return;
  if (::rename(temporary_.c_str(), target_.path.c_str()) != 0) fail("rename");
  temporary_.clear();
}

}  // namespace assay
