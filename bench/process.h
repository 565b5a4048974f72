// The real host device: every arm is a fresh process of one executable, spoken to through pipes.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bench/arm.h"
#include "kernels/base/op_info.h"

namespace assay {

struct ProcessOptions {
  std::string executable = "/proc/self/exe";
  std::vector<std::string> child_args{
      "ab-child"};           // before --op .. --tiers .. --threads .. --cpus ..
  double timeout_s = 120.0;  // for one answer
};

// Judge and device for one op of this build (or a test's own OpInfo).
std::unique_ptr<Device> make_process_device(const OpInfo& op,
                                            const Plan& plan,
                                            const ProcessOptions& options = {});

// The child's command line, parsed; UserError for what is not understood.
struct ChildCommand {
  std::string op;
  std::vector<std::string> tiers;
  int threads = 1;
  std::vector<int> cpus;
  Backend backend = Backend::kHost;
  std::string regime = "hot";
};
ChildCommand parse_child_command(const std::vector<std::string>& args);

// The device that a plan's arms run on: this CPU, or the GPU (HardwareError without one).
const DeviceInfo& device_of(const std::string& backend);

// Judges a variant's outputs by its declared class, on the judge's own copy of the inputs. Empty when right.
std::string judge_outputs(const OpInfo& op,
                          std::size_t case_index,
                          const std::string& variant,
                          std::uint64_t content_seed,
                          const std::vector<std::vector<std::byte>>& outputs);

}  // namespace assay
