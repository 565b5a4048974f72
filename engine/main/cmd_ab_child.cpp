// assay ab-child: one arm of a pair. Started by `assay ab` only; its environment decides which variant it is.
#include <unistd.h>

#include "bench/child.h"
#include "bench/process.h"
#include "bench/timing_cases.h"
#include "engine/main/command.h"
#include "kernels/base/env.h"
#include "kernels/base/error.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  const ChildCommand command = parse_child_command({argv + 1, argv + argc});
  const bool on_card = command.backend == Backend::kCuda;
  const OpInfo& op = on_card ? with_timing_cases(find_op(command.op)) : find_op(command.op);
  const SwitchValue value = Env::read().switch_for(op.name);
  if (value.parity) throw UserError("ab-child: a parity: switch times two variants at once");
  return serve_arm(op,
                   value.variant,
                   {command.tiers, command.threads, command.cpus, command.backend, command.regime},
                   STDIN_FILENO,
                   STDOUT_FILENO);
}

}  // namespace

extern const Command command_ab_child;
const Command command_ab_child{"ab-child", "internal", "one arm of a pair", run};

}  // namespace assay
