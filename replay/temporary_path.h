// A temporary file's name: for readers that open it while it exists and keep the bytes after it is gone.
#pragma once
#include <string>

#include <unistd.h>

#include "kernels/base/error.h"

namespace assay::replay {

class TemporaryPath {
 public:
  TemporaryPath() : path_("/tmp/assay-trace-XXXXXX") {
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) throw Error(Exit::kCheckFailed, "cannot create a temporary file under /tmp");
    ::close(fd);
  }
  ~TemporaryPath() { ::unlink(path_.c_str()); }
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;
  const std::string& get() const { return path_; }

 private:
  std::string path_;
};

}  // namespace assay::replay
