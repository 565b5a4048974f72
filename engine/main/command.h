// A subcommand of `assay`. cmd_<name>.cpp defines `const Command command_<name>` (underscores become dashes in `name`).
#pragma once
#include <span>

namespace assay {

struct Command {
  const char* name;     // "bench-model"
  const char* group;    // heading in --help: "model", "lab", "traces"
  const char* summary;  // one line
  // argv[0] is "assay <name>". Returns an exit code; exceptions are handled by run_program.
  int (*run)(int argc, char** argv);
};

// Every subcommand of this build. Defined by generated code.
std::span<const Command* const> all_commands();

}  // namespace assay
