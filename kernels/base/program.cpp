#include "kernels/base/program.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/env.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/output_file.h"

namespace assay {
namespace {

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

[[noreturn]] void refuse_file(const std::string& path, int error) {
  throw InputError(path + ": " + std::strerror(error));
}

}  // namespace

int run_program(const char* name,
                int argc,
                char** argv,
                const std::function<int(int, char**)>& body) {
  int code = static_cast<int>(Exit::kCheckFailed);
  try {
    init_log(nullptr);  // until the environment is known to be sound
    const Env env = Env::read();
    if (const auto level = env.get("ASSAY_LOG_LEVEL")) init_log(level->c_str());
    ASSAY_LOG(debug, "{} {}", name, build_line());
    code = body(argc, argv);
  } catch (const HelpShown&) {
    code = 0;
  } catch (const Error& e) {
    std::cerr << name << ": " << e.what() << '\n';
    code = static_cast<int>(e.code());
  } catch (const std::bad_alloc&) {
    std::cerr << name << ": out of memory\n";
  } catch (const std::exception& e) {
    std::cerr << name << ": internal error: " << e.what() << '\n';
  }
  std::cout.flush();
  if (!std::cout && code == 0) {
    std::cerr << name << ": cannot write to stdout\n";
    code = static_cast<int>(Exit::kCheckFailed);
  }
  return code;
}

void write_json(const std::string& path, const std::string& document) {
  if (path.empty()) return;
  if (path == "-") {
    std::cout << document << '\n';
    return;
  }
  write_file_atomic(path, document + "\n");
}

std::string read_file(const std::string& path, std::size_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse_file(path, errno);
  struct stat st {};
  if (::fstat(fd, &st) != 0 || S_ISDIR(st.st_mode)) {
    ::close(fd);
    refuse_file(path, EISDIR);
  }
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::close(fd);
      refuse_file(path, error);
    }
    if (n == 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
    if (text.size() > max_bytes) {
      ::close(fd);
      throw InputError(path + ": larger than the " + std::to_string(max_bytes) +
                       " bytes accepted here");
    }
  }
  ::close(fd);
  return text;
}

void write_file_atomic(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.write(content.data(), content.size());
  file.finish();
}

Progress::Progress(std::string label, std::uint64_t total)
    : label_(std::move(label)), total_(total), started_ms_(now_ms()), terminal_(::isatty(2) == 1) {}

Progress::~Progress() {
  if (terminal_ && drawn_ms_ != 0) std::fprintf(stderr, "\r\033[K");
}

void Progress::update(std::uint64_t done) {
  if (!terminal_ || total_ == 0) return;
  const std::int64_t now = now_ms();
  if (drawn_ms_ != 0 && now - drawn_ms_ < 100 && done < total_) return;
  drawn_ms_ = now;
  const double share = static_cast<double>(done) / static_cast<double>(total_);
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(share * kWidth);
  const double left_s =
      share > 0.0 ? static_cast<double>(now - started_ms_) / 1000.0 * (1.0 - share) / share : 0.0;
  std::fprintf(stderr,
               "\r\033[K%s [%.*s%*s] %3.0f%% %.0f s left",
               label_.c_str(),
               filled,
               "##############################",
               kWidth - filled,
               "",
               share * 100.0,
               left_s);
}

}  // namespace assay
