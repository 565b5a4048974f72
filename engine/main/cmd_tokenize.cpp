// assay tokenize: text to token ids.
#include <iostream>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/tokenizer.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  std::string model;
  std::optional<std::string> text;
  std::string text_file;
  std::string special = "all";
  std::string json_path;
  bool no_bos = false;
  CommandLine app(
      "Text to token ids",
      "assay tokenize",
      "assay tokenize --model engine/models/tiny-gemma4-moe-q4_0.gguf --text \"Hello, world!\"");
  app.add_option("--model", model, "GGUF file").required().type_name("FILE");
  const auto given = app.add_option("--text", text, "the text").type_name("TEXT");
  app.add_option("--text-file", text_file, "the text is this file's bytes")
      .type_name("FILE")
      .excludes(given);
  app.add_flag("--no-bos", no_bos, "without BOS in front");
  app.add_option(
         "--special", special, "special tokens that are recognised: all, user-defined, none")
      .type_name("MODE")
      .show_default();
  app.add_option("--json", json_path, "write {ids} as JSON to a file, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);
  const auto mode = parse_special_mode(special);
  if (!mode) throw UserError("--special '" + special + "': valid are all, user-defined, none");
  if (!text && text_file.empty()) throw UserError("one of --text and --text-file is needed");

  protect_input(model);
  const Tokenizer tokenizer = Tokenizer::load(GgufFile::open(model));
  if (!text_file.empty()) protect_input(text_file);
  const auto ids = tokenizer.encode(text ? *text : read_file(text_file), !no_bos, *mode);
  write_json(
      json_path,
      nlohmann::json{{"schema", "assay-tokenize"}, {"schema_version", 1}, {"ids", ids}}.dump());
  if (json_path != "-") {
    for (std::size_t i = 0; i < ids.size(); ++i) std::cout << (i == 0 ? "" : ",") << ids[i];
    std::cout << '\n';
  }
  return 0;
}

}  // namespace

extern const Command command_tokenize;
const Command command_tokenize{"tokenize", "model", "text to token ids", run};

}  // namespace assay
