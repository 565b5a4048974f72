#include "bench/run_queue.h"

#include <cstdio>
#include <cstdlib>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace assay {
namespace {

// The first two numbers of a schedstat file: nanoseconds on a core and on a run queue.
RunQueueTime read_one(int fd) {
  char text[96];
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  if (n <= 0) return {};
  text[n] = 0;
  long long ran = 0;
  long long wait = 0;
  if (std::sscanf(text, "%lld %lld", &ran, &wait) != 2) return {};
  return {static_cast<double>(ran) * 1e-9, static_cast<double>(wait) * 1e-9};
}

}  // namespace

RunQueueClock::RunQueueClock(const std::string& pid) : tasks_("/proc/" + pid + "/task") {
  main_ = ::open(("/proc/" + pid + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
}

RunQueueClock::~RunQueueClock() {
  if (main_ >= 0) ::close(main_);
}

RunQueueTime RunQueueClock::read() const {
  if (main_ < 0) return {};
  struct stat st {};
  // A directory has two links and one more a thread.
  if (::stat(tasks_.c_str(), &st) != 0 || st.st_nlink <= 3) return read_one(main_);
  RunQueueTime sum;
  if (DIR* dir = ::opendir(tasks_.c_str())) {
    while (const dirent* entry = ::readdir(dir)) {
      if (entry->d_name[0] == '.') continue;
      const int fd =
          ::open((tasks_ + "/" + entry->d_name + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) continue;
      const RunQueueTime one = read_one(fd);
      sum.ran_s += one.ran_s;
      sum.waited_s += one.waited_s;
      ::close(fd);
    }
    ::closedir(dir);
  }
  return sum;
}

}  // namespace assay
