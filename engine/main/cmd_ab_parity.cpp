// assay ab-parity: the parity check before a timing, by the binary that will be timed. Started by `assay ab` and `assay prove`.
#include <CLI/CLI.hpp>

#include "engine/main/ab_gates.h"
#include "engine/main/command.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  CLI::App app("The parity check before a timing; see parity_<op> for the one to use by hand.",
               "assay ab-parity");
  house_style(app, "parity_gemv_quant --variant avx2");
  std::string op;
  std::string variant;
  std::string record;
  app.add_option("--op", op)->required();
  app.add_option("--variant", variant)->required();
  app.add_option("--record", record)->required();
  parse_command_line(app, argc, argv);
  return serve_parity_gate(op, variant, record);
}

}  // namespace

extern const Command command_ab_parity;
const Command command_ab_parity{"ab-parity", "internal", "parity before a timing", run};

}  // namespace assay
