// assay make-model: a random model of any preset and block type.
#include <algorithm>
#include <iostream>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/make_model.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : ", ") + n;
  return out;
}

int run(int argc, char** argv) {
  MakeModelOptions options;
  std::string out;
  std::string json_path;
  int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
  CommandLine app("Write a random model; the same bytes from the same seed on every machine",
                  "assay make-model",
                  "assay make-model --preset spec --type q4_k --out build/spec.gguf");
  app.add_option("--preset", options.preset, joined(make_model_presets()))
      .required()
      .type_name("NAME");
  app.add_option("--type", options.type, joined(make_model_types()))
      .type_name("TYPE")
      .show_default();
  app.add_option(
         "--embedding-type", options.embedding_type, "block type of token_embd, default: as --type")
      .type_name("TYPE");
  app.add_option("--rng-seed", options.seed, "seed of every value").type_name("N").show_default();
  app.add_option("--out", out, "the file to write").required().type_name("FILE");
  app.add_option("--threads", threads, "does not change the bytes").type_name("N").show_default();
  app.add_option("--json", json_path, "write {path, bytes, tensors} as JSON to a file, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);
  if (threads < 1 || threads > 256)
    throw UserError("--threads " + std::to_string(threads) + ": 1 to 256 are valid");

  const GgufWriter description = describe_model(options);
  Progress bar("writing " + options.preset + " " + options.type, description.file_bytes());
  make_model(options, out, threads, [&](std::uint64_t done, std::uint64_t) { bar.update(done); });
  write_json(json_path,
             nlohmann::json{{"schema", "assay-make-model"},
                            {"schema_version", 1},
                            {"path", out},
                            {"bytes", description.file_bytes()},
                            {"tensors", description.tensors().size()},
                            {"preset", options.preset},
                            {"type", options.type},
                            {"rng_seed", options.seed}}
                 .dump());
  if (json_path != "-") std::cout << out << ": " << description.file_bytes() << " bytes\n";
  return 0;
}

}  // namespace

extern const Command command_make_model;
const Command command_make_model{
    "make-model", "model", "write a random model of a preset and block type", run};

}  // namespace assay
