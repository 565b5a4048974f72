// The child of the driver's tests: serves one arm of the cheating op. `--deaf` in front ignores the switch and runs stock, as
// a build whose switch is not wired would.
#include <iostream>
#include <string>
#include <vector>

#include <unistd.h>

#include "bench/child.h"
#include "bench/process.h"
#include "bench/testdata/cheat_op.h"
#include "kernels/base/env.h"

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  try {
    bool deaf = false;
    if (!args.empty() && args[0] == "--deaf") {
      deaf = true;
      args.erase(args.begin());
    }
    const auto command = assay::parse_child_command(args);
    const std::string variant =
        deaf ? "stock" : assay::outside_variable("ASSAY_CHEAT").value_or("stock");
    return assay::serve_arm(assay::cheat_op(),
                            variant,
                            {command.tiers, command.threads, command.cpus},
                            STDIN_FILENO,
                            STDOUT_FILENO);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 2;
  }
}
