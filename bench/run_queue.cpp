#include "bench/run_queue.h"

#include <cstdio>
#include <cstdlib>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace assay {
namespace {

// Second number of a schedstat file: nanoseconds on a run queue.
double waited(int fd) {
  char text[96];
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  if (n <= 0) return 0.0;
  text[n] = 0;
  long long ran = 0;
  long long wait = 0;
  return std::sscanf(text, "%lld %lld", &ran, &wait) == 2 ? static_cast<double>(wait) * 1e-9 : 0.0;
}

}  // namespace

RunQueueClock::RunQueueClock(const std::string& pid) : tasks_("/proc/" + pid + "/task") {
  main_ = ::open(("/proc/" + pid + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
}

RunQueueClock::~RunQueueClock() {
  if (main_ >= 0) ::close(main_);
}

double RunQueueClock::seconds() const {
  if (main_ < 0) return 0.0;
  struct stat st {};
  // A directory has two links and one more a thread.
  if (::stat(tasks_.c_str(), &st) != 0 || st.st_nlink <= 3) return waited(main_);
  double sum = 0.0;
  if (DIR* dir = ::opendir(tasks_.c_str())) {
    while (const dirent* entry = ::readdir(dir)) {
      if (entry->d_name[0] == '.') continue;
      const int fd =
          ::open((tasks_ + "/" + entry->d_name + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) continue;
      sum += waited(fd);
      ::close(fd);
    }
    ::closedir(dir);
  }
  return sum;
}

}  // namespace assay
