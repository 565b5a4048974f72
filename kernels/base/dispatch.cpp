#include "kernels/base/dispatch.h"

#include "kernels/base/error.h"
#include "kernels/base/log.h"

namespace assay {

Choice choose(const std::string& op, const Env& env, const Profile& profile) {
  if (env.has_switch(op)) {
    const SwitchValue v = env.switch_for(op);
    return {v.variant, v.parity, "switch"};
  }
  const auto it = profile.find(op);
  if (it != profile.end()) return {it->second, false, "profile"};
  return {};
}

void note_fallback(DispatchReport& report, Why reason, bool strict) {
  if (strict) {
    throw UserError("ASSAY_STRICT=1: " + report.op + "=" + report.choice.variant +
                    " cannot run here: " + reason);
  }
  if (++report.fallback[reason] == 1) {
    ASSAY_LOG(warn,
              "{}={} serves stock where it is ineligible: {}",
              report.op,
              report.choice.variant,
              reason);
  }
}

void note_broken(DispatchReport& report, const std::string& what) {
  if (++report.broke_rules == 1) {
    ASSAY_LOG(
        warn, "{}={} under parity {}; stock is served", report.op, report.choice.variant, what);
  }
}

}  // namespace assay
