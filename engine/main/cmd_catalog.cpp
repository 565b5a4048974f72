// assay catalog: what exists, from the registry.
#include <iostream>

#include "engine/main/command.h"
#include "kernels/base/op_info.h"

namespace assay {
namespace {
int run(int, char**) {
  for (const OpInfo* op : all_ops()) {
    for (const auto& v : op->variants) std::cout << op->name << ' ' << v.name << '\n';
  }
  return 0;
}
}  // namespace

extern const Command command_catalog;
const Command command_catalog{"catalog", "lab", "ops, variants, stages and proofs", run};

}  // namespace assay
