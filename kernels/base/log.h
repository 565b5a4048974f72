// Programs log to stderr through this; stdout carries only the answer. Level: ASSAY_LOG_LEVEL (trace..off), default info.
#pragma once
#include <spdlog/spdlog.h>

#define ASSAY_LOG(level, ...) ::spdlog::level(__VA_ARGS__)

namespace assay {
// Sends the default logger to stderr at the level named (UserError lists the valid ones). Called once by run_program.
void init_log(const char* level_name);
}  // namespace assay
