// assay ab-parity: the parity check before a timing, by the binary that will be timed. Started by `assay ab` and `assay prove`.

#include "engine/main/ab_gates.h"
#include "engine/main/command.h"
#include "kernels/base/command_line.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  CommandLine app("The parity check before a timing; see parity_<op> for the one to use by hand.",
                  "assay ab-parity",
                  "parity_gemv_quant --variant avx2");
  std::string op;
  std::string variant;
  std::string record;
  std::string backend = "host";
  app.add_option("--op", op).required();
  app.add_option("--variant", variant).required();
  app.add_option("--record", record).required();
  app.add_option("--backend", backend);
  app.parse(argc, argv);
  return serve_parity_gate(op, variant, backend, record);
}

}  // namespace

extern const Command command_ab_parity;
const Command command_ab_parity{"ab-parity", "internal", "parity before a timing", run};

}  // namespace assay
