// Files that programs write for their users. What stood there is replaced whole or not at all; a device, a pipe or a
// socket is written, never replaced; a link is followed; an input of the same run is refused.
#pragma once
#include <cstddef>
#include <string>

namespace assay {

// The file behind `path`, links followed, the last name may be new. UserError when it is an input of this run (see
// protect_input) or a folder.
struct OutputTarget {
  std::string path;
  bool in_place = false;  // not a regular file, or one that cannot be replaced by name
};
OutputTarget output_target(const std::string& path);

// From here on nothing in this process opens `path` as an output. A path that cannot be looked at is ignored: whoever opens
// it for reading says so better.
void protect_input(const std::string& path);

class OutputFile {
 public:
  // Error(1) naming the path when it cannot be created.
  explicit OutputFile(const std::string& path);
  ~OutputFile();  // unless finished, nothing has changed (of a file that is not in place)
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(const void* data, std::size_t bytes);
  int fd() const { return fd_; }
  bool in_place() const { return target_.in_place; }
  // Synced and in its place. Error(1) naming the path and the step that failed; here and in write.
  void finish();
  // "PATH: cannot STEP: reason", from errno.
  [[noreturn]] void fail(const char* step) const;

 private:
  std::string path_;  // as the user wrote it
  OutputTarget target_;
  std::string temporary_;
  int fd_ = -1;
};

}  // namespace assay
