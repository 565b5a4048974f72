// A deadline around a wait for the card. A kernel that never ends, or a driver that no longer answers, holds the thread inside a
// call that cannot be interrupted: when the deadline passes the process says what it waited for and ends with exit code 1.
#pragma once
#include <chrono>
#include <cstddef>

namespace assay {

class WaitLimit {
 public:
  // `what`: static text, e.g. "the card's copies to the host".
  explicit WaitLimit(const char* what, std::chrono::milliseconds limit = kLongest);
  ~WaitLimit();
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;
  // Longer than any single answer of a healthy card: a chunk of a prompt on its slowest kernels.
  static constexpr std::chrono::milliseconds kLongest = std::chrono::minutes(10);

 private:
  std::size_t slot_;
};

}  // namespace assay
