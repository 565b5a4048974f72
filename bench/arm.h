// What the driver talks to: a device that starts arms, and a started arm. The real device starts processes
// (bench/process.h); the synthetic one (bench/synthetic.h) has a noise model and a clock of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/plan.h"

namespace assay {

// The arm's process failed in a way that has a name. code: CRASH (it ended), HANG (no answer in time), GARBAGE (an answer
// that is no answer), REFUSED (it said why it cannot start).
class ArmError : public std::runtime_error {
 public:
  ArmError(std::string code, const std::string& what)
      : std::runtime_error(what), code_(std::move(code)) {}
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

struct Library {
  std::string soname;
  std::string sha256;
};

// Who the started arm is, as found from outside and as told by itself.
struct ArmIdentity {
  std::string
      switch_seen;  // the switch's value in the process's own environment, read from the process table
  std::string switch_echo;  // what the child says it resolved
  std::size_t env_bytes = 0;
  std::string exe_sha256;
  std::vector<Library> libs;
  std::vector<std::string> argv;
  std::int64_t pid_start_ns = 0;      // monotonic, since the sitting began
  std::vector<std::string> fallback;  // per tier: why the variant cannot run it, or empty
  double clock_floor_s = 0.0;         // cost of one empty timed group
  bool pinned = false;                // the process is bound to its own cores
};

// A block: `groups` timed groups of `group_calls` calls each. New input content, same pointers, before each group; outputs
// poisoned; both outside the clock.
struct BlockRequest {
  int tier = 0;
  int groups = 1;
  int group_calls = 1;
  std::uint64_t seed = 0;
  // More calls of the same inside the clock of every group: a plan's injected slowdown. Not counted as calls.
  int extra_calls = 0;
  bool warm = true;  // one untimed call first; pointless where a single call outlasts the block
};
struct BlockReply {
  double wall_s = 0.0;  // sum over groups
  double cpu_s = 0.0;   // process CPU time over the same groups
  double wait_s =
      0.0;  // time its threads waited for a core over the same groups, as the kernel counted
  double event_s = 0.0;  // the same groups on the card's clock; 0 on the host
  // The parent's clock from request to answer, less waiting for a core: not the child's to forge.
  double outer_s = 0.0;
  double ran_s = 0.0;  // time on a core over the whole block, as the kernel told the parent
  int preempted = 0;   // times the kernel took a core away during the groups
  bool inputs_intact = true;
  std::string broken_guard;  // empty: intact
};
struct Calibration {
  int groups = 1;
  int group_calls = 1;
  int unit_calls = 1;  // calls that are timed together at the least; group_calls is a multiple
};
// What the operating system counted for the process.
struct Usage {
  double cpu_s = 0.0;
  std::int64_t involuntary_switches = 0;
  std::int64_t page_faults = 0;
};

// CPU time that the hypervisor gave to others, and that any process of this machine used, since it started; and the mean
// clock now. Environment, not values.
struct HostLoad {
  double steal_s = 0.0;
  double busy_s = 0.0;
  double mhz = 0.0;
};

class Arm {
 public:
  virtual ~Arm() = default;
  // Waits until the started process is ready; before this it has no identity. Throws ArmError.
  virtual void greet() {}
  virtual const ArmIdentity& identity() const = 0;
  // Group and block sizes so that a block holds at least `block_us` of work.
  virtual Calibration calibrate(int tier, int block_us) = 0;
  virtual BlockReply block(const BlockRequest& request) = 0;
  // The raw output bytes of the last group of the last block, copied by the harness when its clock stopped.
  virtual std::vector<std::vector<std::byte>> outputs(int tier) = 0;
  // What the child says of the card it ran on, after its last block, as one JSON text; empty on the host.
  virtual std::string card() { return ""; }
  virtual Usage finish() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  // Starts one process with ASSAY_<OP>=variant; `other` is the other arm's variant, so that both environments have one
  // length. Throws ArmError.
  virtual std::unique_ptr<Arm> start(const std::string& variant, const std::string& other) = 0;
  // Judges outputs of `variant` for the request that made them: empty when right, else what is wrong and where.
  virtual std::string judge(const std::string& variant,
                            const BlockRequest& request,
                            const std::vector<std::vector<std::byte>>& outputs) = 0;
  virtual HostLoad load() const = 0;
  // Clocks, power and throttling of the card now, as one JSON text; empty on the host.
  virtual std::string card_state() const { return ""; }
  // Seconds the machine was suspended since it started: a jump voids the pair in progress.
  virtual double suspended_s() const = 0;
  // A seed nobody could know before now.
  virtual std::uint64_t fresh_seed() = 0;
  // Minimum bytes and operations of one call, for the roofline columns.
  virtual double bytes_moved(int tier) const = 0;
  virtual double flops(int tier) const = 0;
};

}  // namespace assay
