// assay perplexity: how well the model predicts a text it has not seen.
//
// The text is encoded without BOS and cut into windows of kWindow tokens. Each window is a sequence of its own, BOS in
// front; its tokens from number kFirstScored on are scored, so that every scored token has at least that much context. A
// last, shorter window is scored likewise. The loss is -log softmax of the capped logits, in double.
#include <cmath>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

constexpr int kWindow = 1024;  // tokens of the text
constexpr int kFirstScored = 256;

// -log softmax(logits)[id]
double loss_of(std::span<const float> logits, TokenId id) {
  double top = logits[0];
  for (const float l : logits) top = std::max(top, static_cast<double>(l));
  double sum = 0.0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - top);
  return top + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(id)]);
}

struct Window {
  int scored = 0;
  double loss = 0.0;  // sum over the scored tokens
};

// The last token is only predicted, never fed.
Window score(Session& session, std::span<const TokenId> bos, std::span<const TokenId> window) {
  std::vector<TokenId> fed(bos.begin(), bos.end());
  fed.insert(fed.end(), window.begin(), window.end() - 1);
  const int shift = 1 - static_cast<int>(bos.size());  // of the token that position p predicts
  Window w;
  session.reset();
  session.feed(
      fed,
      [&](int p) { return p + shift >= kFirstScored; },
      [&](int p, std::span<const float> logits) {
        w.loss += loss_of(logits, window[static_cast<std::size_t>(p + shift)]);
        ++w.scored;
      });
  return w;
}

int run(int argc, char** argv) {
  CLI::App app{"Perplexity of a text: BOS + windows of 1024 tokens, tokens from 256 on scored",
               "assay perplexity"};
  house_style(app,
              "assay perplexity --model engine/models/tiny-gemma4-moe-q4_0.gguf "
              "--text-file engine/testdata/heldout.txt");
  ModelOptions options;
  std::string text_file;
  std::string json_path;
  app.add_option("--text-file", text_file, "the text")->type_name("FILE")->required();
  add_model_options(app, options);
  app.add_option("--json", json_path, "write {perplexity, loss, tokens, windows}, - is stdout")
      ->type_name("PATH");
  parse_command_line(app, argc, argv);

  const std::string text = read_file(text_file);
  ModelSettings settings = resolve(options);
  if (options.ctx == 0) settings.context = kWindow;
  if (settings.context < kWindow) {
    throw UserError("--ctx " + std::to_string(settings.context) + ": a window needs " +
                    std::to_string(kWindow));
  }
  const auto model = open_model(options.model, settings);
  const auto bos = model->tokenizer().encode("", true, SpecialMode::kNone);
  const auto ids = model->tokenizer().encode(text, false, SpecialMode::kNone);

  Session session(*model);
  nlohmann::json windows = nlohmann::json::array();
  double loss = 0.0;
  int scored = 0;
  Progress progress("perplexity", ids.size());
  for (std::size_t at = 0; ids.size() - at > kFirstScored; at += kWindow) {
    const std::size_t n = std::min<std::size_t>(kWindow, ids.size() - at);
    const Window w = score(session, bos, std::span(ids).subspan(at, n));
    loss += w.loss;
    scored += w.scored;
    windows.push_back({{"tokens", w.scored}, {"loss", w.loss / w.scored}});
    progress.update(at + n);
    if (n < kWindow) break;
  }
  if (scored == 0) {
    throw InputError(text_file + ": " + std::to_string(ids.size()) +
                     " tokens; more than 256 are needed to score any");
  }
  const double mean = loss / scored;
  if (!std::isfinite(mean)) throw CheckError(text_file + ": the loss is not a finite number");
  log_armed(*model);
  write_json(json_path,
             nlohmann::json{{"schema", "assay-perplexity"},
                            {"schema_version", 1},
                            {"perplexity", std::exp(mean)},
                            {"loss", mean},
                            {"tokens", scored},
                            {"text_tokens", ids.size()},
                            {"text_bytes", text.size()},
                            {"window", kWindow},
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
                scored,
                windows.size());
  }
  return 0;
}

}  // namespace

extern const Command command_perplexity;
const Command command_perplexity{"perplexity", "model", "how well the model predicts a text", run};

}  // namespace assay
