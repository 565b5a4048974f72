// assay detokenize: token ids to text.
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "engine/tokenizer.h"
#include "kernels/base/command_line.h"
#include "kernels/base/output_file.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  std::string model;
  std::string ids_text;
  std::string json_path;
  bool show_control = false;
  CommandLine app(
      "Token ids to text",
      "assay detokenize",
      "assay detokenize --model engine/models/tiny-gemma4-moe-q4_0.gguf --ids 3493,536,295");
  app.add_option("--model", model, "GGUF file").required().type_name("FILE");
  app.add_option("--ids", ids_text, "token ids with commas between them")
      .required()
      .type_name("IDS");
  app.add_flag("--show-control", show_control, "print control tokens too");
  app.add_option("--json", json_path, "write {ids, text} as JSON to a file, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);

  const std::vector<TokenId> ids = parse_ids(ids_text, "--ids");
  protect_input(model);
  const Tokenizer tokenizer = Tokenizer::load(GgufFile::open(model));
  const std::string bytes = tokenizer.decode(ids, show_control);
  if (!json_path.empty()) {
    Utf8Stream utf8;  // JSON holds text only; bytes that are none become U+FFFD
    std::string text = utf8.push(bytes);
    text += utf8.finish();
    write_json(
        json_path,
        nlohmann::json{
            {"schema", "assay-detokenize"}, {"schema_version", 1}, {"ids", ids}, {"text", text}}
            .dump());
  }
  if (json_path != "-") std::cout << bytes << '\n';
  return 0;
}

}  // namespace

extern const Command command_detokenize;
const Command command_detokenize{"detokenize", "model", "token ids to text", run};

}  // namespace assay
