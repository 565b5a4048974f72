// assay perplexity: how well the model predicts a text it has not seen (engine/perplexity.h).
#include <cmath>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "engine/perplexity.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  CommandLine app("Perplexity of a text: BOS + windows of 1024 tokens, tokens from 256 on scored",
                  "assay perplexity",
                  "assay perplexity --model engine/models/tiny-gemma4-moe-q4_0.gguf "
                  "--text-file engine/testdata/heldout.txt");
  ModelOptions options;
  std::string text_file;
  std::string json_path;
  app.add_option("--text-file", text_file, "the text").type_name("FILE").required();
  add_model_options(app, options);
  app.add_option("--json", json_path, "write {perplexity, loss, tokens, windows}, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);

  protect_input(text_file);
  const std::string text = read_file(text_file);
  ModelSettings settings = resolve(options);
  if (options.ctx == 0) settings.context = kPerplexityWindow;
  if (settings.context < kPerplexityWindow) {
    throw UserError("--ctx " + std::to_string(settings.context) + ": a window needs " +
                    std::to_string(kPerplexityWindow));
  }
  const auto model = open_model(options.model, settings);
  // What the text has is known only once it is encoded.
  std::optional<Progress> bar;
  const Perplexity result = perplexity(*model, text, [&](std::size_t done, std::size_t all) {
    if (!bar) bar.emplace("perplexity", all);
    bar->update(done);
  });
  bar.reset();
  if (result.scored == 0) {
    throw InputError(text_file + ": " + std::to_string(result.text_tokens) + " tokens; more than " +
                     std::to_string(kFirstScored) + " are needed to score any");
  }
  nlohmann::json windows = nlohmann::json::array();
  for (const auto& w : result.windows) {
    windows.push_back({{"tokens", w.scored}, {"loss", w.loss / w.scored}});
  }
  const double mean = result.mean();
  if (!std::isfinite(mean)) throw CheckError(text_file + ": the loss is not a finite number");
  log_armed(*model);
  write_json(json_path,
             nlohmann::json{{"schema", "assay-perplexity"},
                            {"schema_version", 1},
                            {"perplexity", std::exp(mean)},
                            {"loss", mean},
                            {"tokens", result.scored},
                            {"text_tokens", result.text_tokens},
                            {"text_bytes", text.size()},
                            {"window", kPerplexityWindow},
                            {"first_scored", kFirstScored},
                            {"numerics", to_string(model->numerics())},
                            {"kv", to_string(model->kv_type())},
                            {"windows", windows},
                            {"armed", armed_json(*model)}}
                 .dump());
  if (json_path != "-") {
    std::printf("perplexity %.4f  (loss %.6f nats a token over %d tokens in %zu windows)\n",
                std::exp(mean),
                mean,
                result.scored,
                windows.size());
  }
  return 0;
}

}  // namespace

extern const Command command_perplexity;
const Command command_perplexity{"perplexity", "model", "how well the model predicts a text", run};

}  // namespace assay
