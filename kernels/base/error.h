// Exceptions of the house. Expected outcomes (ineligible, cache miss, queue full) are values, not exceptions.
#pragma once
#include <stdexcept>
#include <string>

namespace assay {

// Process exit codes, the same in every program.
enum class Exit : int {
  kGood = 0,
  kCheckFailed = 1,
  kUsage = 2,
  kInputRefused = 3,
  kNoHardware = 77,
};

// Base of all of ours: carries the exit code that `run_program` returns.
class Error : public std::runtime_error {
 public:
  Error(Exit code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

// Bad flag, switch name, value or combination: exit 2. The message lists what is valid.
class UserError : public Error {
 public:
  explicit UserError(const std::string& message) : Error(Exit::kUsage, message) {}
};

// A file or request is at fault: exit 3. The message names the key or tensor and the byte offset.
class InputError : public Error {
 public:
  explicit InputError(const std::string& message) : Error(Exit::kInputRefused, message) {}
};

// A check ran and failed (parity, verify): exit 1.
class CheckError : public Error {
 public:
  explicit CheckError(const std::string& message) : Error(Exit::kCheckFailed, message) {}
};

// The machine lacks what was asked for (no GPU, driver too old, build without CUDA): exit 77.
class HardwareError : public Error {
 public:
  explicit HardwareError(const std::string& message) : Error(Exit::kNoHardware, message) {}
};

}  // namespace assay
