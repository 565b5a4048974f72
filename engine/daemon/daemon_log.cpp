#include "engine/daemon/daemon_log.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

namespace assay {
namespace {

// A pipe that is writable at all takes this much without waiting (PIPE_BUF).
constexpr std::size_t kLineBytes = 4096;

class DroppingSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) {
      ++lost_;
      return;
    }
    spdlog::memory_buf_t line;
    if (lost_ > 0)
      fmt::format_to(std::back_inserter(line), "[warning] {} log lines were lost\n", lost_);
    lost_ = 0;
    formatter_->format(message, line);
    if (line.size() > kLineBytes) {
      line.resize(kLineBytes);
      line[kLineBytes - 1] = '\n';
    }
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  void flush_() override {}

 private:
  std::size_t lost_ = 0;
};

}  // namespace

void use_dropping_log() {
  auto logger = std::make_shared<spdlog::logger>("assayd", std::make_shared<DroppingSink>());
  logger->set_pattern("[%l] %v");
  logger->set_level(spdlog::default_logger()->level());
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace assay
