// Faults from outside. Preloaded into a program (LD_PRELOAD), it makes one chosen allocation or one chosen step of a snapshot's
// write fail; the programs themselves hold no hook.
//
// FAULT_PLAN names a file that holds a Plan; the test maps it too and changes it while the program runs.
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

extern "C" {  // glibc's own, behind the names that are replaced here
void* libc_malloc(std::size_t bytes) __asm__("__libc_malloc");
void* libc_calloc(std::size_t n, std::size_t bytes) __asm__("__libc_calloc");
void* libc_realloc(void* p, std::size_t bytes) __asm__("__libc_realloc");
void* libc_memalign(std::size_t alignment, std::size_t bytes) __asm__("__libc_memalign");
}

namespace {

struct Plan {
  std::atomic<std::int64_t> allocation;   // the n-th from now fails; 0: none
  std::atomic<std::int64_t> times;        // and so do those after it, so many in all
  std::atomic<std::int64_t> least_bytes;  // smaller ones are not counted
  std::atomic<std::int64_t> after_model;  // becomes `allocation` when a .gguf file is opened
  std::atomic<std::int64_t> failed;       // allocations that failed so far
  std::atomic<std::int64_t> file_step;    // the n-th step from now fails, once; 0: none
  std::atomic<std::int64_t> file_errno;   // with this
  std::atomic<std::int64_t> steps;        // so far, of which `trace` holds the first
  // o create, w write, f sync, r rename, d sync of the folder
  char trace[1024];
};
static_assert(sizeof(Plan) == 8 * 8 + 1024);

Plan* plan = nullptr;
enum class Kind : char { kOther, kSnapshot, kFolder };
constexpr int kFiles = 4096;
std::atomic<Kind> kinds[kFiles];

__attribute__((constructor)) void open_plan() {
  constexpr const char kName[] = "FAULT_PLAN=";
  for (char** e = environ; *e != nullptr; ++e) {
    if (std::strncmp(*e, kName, sizeof kName - 1) != 0) continue;
    const int fd = ::open(*e + sizeof kName - 1, O_RDWR | O_CLOEXEC);
    void* at = ::mmap(nullptr, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (at != MAP_FAILED) plan = static_cast<Plan*>(at);
  }
}

bool due(std::atomic<std::int64_t>& left) { return left.load() > 0 && left.fetch_sub(1) == 1; }

bool allocation_fails(std::size_t bytes) {
  static std::atomic<std::int64_t> more{0};
  if (plan == nullptr || bytes < static_cast<std::size_t>(plan->least_bytes.load())) return false;
  if (due(plan->allocation)) {
    more.store(plan->times.load() - 1);
  } else if (more.load() <= 0 || more.fetch_sub(1) <= 0) {
    return false;
  }
  plan->failed.fetch_add(1);
  errno = ENOMEM;
  return true;
}

bool step_fails(char letter) {
  if (plan == nullptr) return false;
  const std::int64_t at = plan->steps.fetch_add(1);
  if (at < static_cast<std::int64_t>(sizeof plan->trace)) plan->trace[at] = letter;
  if (!due(plan->file_step)) return false;
  errno = static_cast<int>(plan->file_errno.load());
  return true;
}

Kind kind_of(int fd) { return fd >= 0 && fd < kFiles ? kinds[fd].load() : Kind::kOther; }

template <class F>
F next(F /*like*/, const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

int open_as(const char* path, int flags, mode_t mode) {
  const bool snapshot = std::strstr(path, ".kv.tmp.") != nullptr && (flags & O_CREAT) != 0;
  if (snapshot && step_fails('o')) return -1;
  const std::size_t length = std::strlen(path);
  if (plan != nullptr && length > 5 && std::strcmp(path + length - 5, ".gguf") == 0) {
    if (const std::int64_t n = plan->after_model.exchange(0); n > 0) plan->allocation.store(n);
  }
  const int fd = ::openat(AT_FDCWD, path, flags, mode);
  if (fd >= 0 && fd < kFiles) {
    const bool folder = (flags & O_DIRECTORY) != 0;
    kinds[fd].store(snapshot ? Kind::kSnapshot : folder ? Kind::kFolder : Kind::kOther);
  }
  return fd;
}

}  // namespace

extern "C" {

void* malloc(std::size_t bytes) noexcept {
  return allocation_fails(bytes) ? nullptr : libc_malloc(bytes);
}
void* calloc(std::size_t n, std::size_t bytes) noexcept {
  return allocation_fails(n * bytes) ? nullptr : libc_calloc(n, bytes);
}
void* realloc(void* p, std::size_t bytes) noexcept {
  return allocation_fails(bytes) ? nullptr : libc_realloc(p, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return allocation_fails(bytes) ? nullptr : libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) noexcept {
  if (allocation_fails(bytes)) return ENOMEM;
  *out = libc_memalign(alignment, bytes);
  return *out == nullptr ? ENOMEM : 0;
}

int open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open_as(path, flags, mode);
}
ssize_t write(int fd, const void* data, std::size_t bytes) {
  static const auto real = next(&write, "write");
  if (kind_of(fd) == Kind::kSnapshot && step_fails('w')) return -1;
  return real(fd, data, bytes);
}
int fsync(int fd) {
  static const auto real = next(&fsync, "fsync");
  if (kind_of(fd) == Kind::kSnapshot && step_fails('f')) return -1;
  if (kind_of(fd) == Kind::kFolder && step_fails('d')) return -1;
  return real(fd);
}
int rename(const char* from, const char* to) noexcept {
  static const auto real = next(&rename, "rename");
  if (std::strstr(from, ".kv.tmp.") != nullptr && step_fails('r')) return -1;
  return real(from, to);
}

}  // extern "C"
