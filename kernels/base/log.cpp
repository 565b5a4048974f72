#include "kernels/base/log.h"

#include <memory>
#include <string>

#include <spdlog/sinks/stdout_color_sinks.h>

#include "kernels/base/error.h"

namespace assay {

void init_log(const char* level_name) {
  const std::string name = level_name != nullptr ? level_name : "info";
  const auto level = spdlog::level::from_str(name);
  if (level == spdlog::level::off && name != "off") {
    throw UserError("ASSAY_LOG_LEVEL=" + name +
                    ": valid are trace, debug, info, warning, error, critical, off");
  }
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("assay", std::move(sink));
  logger->set_pattern("[%^%l%$] %v");
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace assay
