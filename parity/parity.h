// Judges an op's variants on its cases by the class that each declares (style.md 7). Knows the registry's OpInfo only:
// parity_<op>, the tests' planted broken variants and any later caller take the same path.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/op_info.h"

namespace assay {

struct ParityOptions {
  DeviceInfo device;           // whose column of the registry runs
  std::string filter;          // RE2 on case names; empty: every case
  std::string variant;         // empty: every variant that the backend has
  std::uint64_t rng_seed = 0;  // 0: each case's own
  bool graph = false;          // on a GPU: replays of a captured graph instead of direct launches
  std::vector<int> threads = {
      1, 2, 4};  // host threads to run with; the first also serves the repeat
};

enum class CaseOutcome : std::uint8_t { kPass, kFail, kSkip };

struct CaseResult {
  std::string name;
  std::string shape;
  CaseOutcome outcome = CaseOutcome::kSkip;
  std::string skip_reason;  // kSkip only
  bool lacks_hardware =
      false;  // kSkip only: a better equipped machine, or a build with CUDA, could run it
  std::vector<std::string> faults;  // kFail only, each with where, what and how to repeat
  std::size_t bytes = 0;            // output bytes compared
  std::size_t values = 0;
  std::uint64_t mismatched_bytes = 0;  // against the counterpart: bitwise_to, else stock
  std::uint64_t max_ulp = 0;           // the same
  double rel_l2 = 0.0;        // against the lane's double reference, worst field; may be infinite
  double stock_rel_l2 = 0.0;  // stock's own; infinite when stock could not run
  double error_bound = 0.0;
};

struct VariantResult {
  VariantInfo info;
  std::vector<CaseResult> cases;
  std::vector<std::string> unchecked;  // promises that this op gives no way to check, in words

  std::size_t count(CaseOutcome outcome) const;
  // Good: at least one case compared and none failed. NoHardware: nothing compared, and only for lack of hardware or of
  // a CUDA build. CheckFailed otherwise: nothing compared is a failure.
  Exit verdict() const;
};

struct ParityResult {
  std::vector<VariantResult> variants;
  // CheckFailed when any variant failed or nothing at all was compared, NoHardware when that is for lack of it alone.
  Exit verdict() const;
};

// Runs every selected variant on every selected case. UserError for a bad regular expression, an unknown variant, or an
// op without cases. `on_fault` sees each fault as it is found; `on_progress` (done, total) after each case.
ParityResult run_parity(const OpInfo& op,
                        const ParityOptions& options,
                        const std::function<void(const std::string&)>& on_fault = nullptr,
                        const std::function<void(std::size_t, std::size_t)>& on_progress = nullptr);

}  // namespace assay
