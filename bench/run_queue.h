// Time spent running and waiting for a core, from the kernel's scheduler statistics. On a machine that others use too, a long call is
// preempted more often than a short one, so wall time alone would flatter the faster arm.
#pragma once
#include <string>

namespace assay {

struct RunQueueTime {
  double ran_s = 0.0;     // on a core
  double waited_s = 0.0;  // ready, but without one
};

class RunQueueClock {
 public:
  // pid: "self" or a number; sums over the process's threads. Reads 0 for ever where the kernel keeps no such count.
  explicit RunQueueClock(const std::string& pid);
  ~RunQueueClock();
  RunQueueClock(const RunQueueClock&) = delete;
  RunQueueClock& operator=(const RunQueueClock&) = delete;
  RunQueueTime read() const;

 private:
  std::string tasks_;  // /proc/<pid>/task
  int main_ = -1;      // open schedstat of the first thread: one read when there is no other
};

}  // namespace assay
