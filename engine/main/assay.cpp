// The program `assay`: dispatches to a subcommand.
#include <cstring>
#include <iostream>
#include <string>

#include "engine/main/command.h"
#include "kernels/base/build_id.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

void print_help() {
  std::cout << "assay: kernel lab and minimal engine for mixture-of-experts inference\n\n"
               "Usage: assay COMMAND [flags]      assay COMMAND --help\n";
  for (const char* group : {"model", "lab", "traces"}) {
    std::cout << '\n' << group << ":\n";
    for (const Command* c : all_commands()) {
      if (std::strcmp(c->group, group) == 0) {
        std::cout << "  " << c->name
                  << std::string(
                         std::max<std::size_t>(14, std::strlen(c->name) + 1) - std::strlen(c->name),
                         ' ')
                  << c->summary << '\n';
      }
    }
  }
  std::cout << "\nExit codes: 0 good, 1 a check failed, 2 usage, 3 input refused, 77 no hardware "
               "for it.\n"
               "Example: assay generate --model engine/models/tiny-gemma4-moe-q4_0.gguf --chat "
               "\"SQLite: VACUUM\"\n";
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_help();
    return static_cast<int>(Exit::kUsage);
  }
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    print_help();
    return 0;
  }
  if (name == "--version") {
    std::cout << "assay " << build_line() << '\n';
    return 0;
  }
  std::string names;
  for (const Command* c : all_commands()) {
    if (name == c->name) {
      std::string full = "assay " + name;
      argv[1] = full.data();
      return c->run(argc - 1, argv + 1);
    }
    names += (names.empty() ? "" : ", ") + std::string(c->name);
  }
  throw UserError("unknown command '" + name + "': valid are " + names);
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) { return assay::run_program("assay", argc, argv, assay::run); }
