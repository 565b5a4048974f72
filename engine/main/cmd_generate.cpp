// assay generate: a reply to a prompt, streamed.
#include <chrono>
#include <iostream>
#include <optional>

#include <nlohmann/json.hpp>

#include "engine/chat_template.h"
#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "engine/main/shadow_options.h"
#include "engine/sampler.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
double per_second(std::size_t tokens, double ms) {
  return ms > 0.0 ? 1000.0 * static_cast<double>(tokens) / ms : 0.0;
}

struct Options {
  ModelOptions model;
  ShadowOptions shadow;
  std::optional<std::string> prompt;
  std::optional<std::string> chat;
  std::optional<std::string> ids;
  int n = 128;
  SamplerSettings sampler;
  std::string json_path;
};

Options parse(int argc, char** argv) {
  Options o;
  CommandLine app("A reply to a prompt, streamed to stdout",
                  "assay generate",
                  "assay generate --model engine/models/tiny-gemma4-moe-q4_0.gguf --chat \"SQLite: "
                  "VACUUM\" --greedy");
  CommandLine& source = app.exactly_one_of("prompt");
  source.add_option("--prompt", o.prompt, "text, BOS is put in front").type_name("TEXT");
  source.add_option("--chat", o.chat, "one user message, in the model's chat format")
      .type_name("TEXT");
  source.add_option("--ids", o.ids, "token ids as they are: 2,5,..").type_name("IDS");
  app.add_option("--n", o.n, "most tokens to generate").type_name("N").show_default();
  const auto greedy = app.add_flag("--greedy", o.sampler.greedy, "always the most likely token");
  app.add_option("--temp", o.sampler.temperature, "temperature, 0 is greedy")
      .type_name("T")
      .excludes(greedy)
      .show_default();
  app.add_option("--top-k", o.sampler.top_k, "sample from the k most likely, 0: all")
      .type_name("K")
      .excludes(greedy)
      .show_default();
  app.add_option("--top-p", o.sampler.top_p, "sample from this much probability")
      .type_name("P")
      .excludes(greedy)
      .show_default();
  app.add_option("--rng-seed", o.sampler.seed, "seed of the sampler")
      .type_name("N")
      .excludes(greedy)
      .show_default();
  add_shadow_options(app, o.shadow);
  add_model_options(app, o.model);
  app.add_option("--json", o.json_path, "write {ids, text, stop, timings, armed}, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);
  if (o.n < 1) throw UserError("--n " + std::to_string(o.n) + ": must be at least 1");
  return o;
}

std::vector<TokenId> prompt_ids(const Options& o, const Tokenizer& tokenizer) {
  if (o.ids) return parse_ids(*o.ids, "--ids");
  if (o.chat) return encode_user_prompt(tokenizer, *o.chat);
  return tokenizer.encode(*o.prompt, true, SpecialMode::kAll);
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  Sampler sampler(o.sampler);  // refuses bad settings before the model is read
  const auto started = Clock::now();
  const auto model = open_model(o.model);
  const double load_ms = ms_since(started);
  const Tokenizer& tokenizer = model->tokenizer();
  const auto prompt = prompt_ids(o, tokenizer);
  if (prompt.empty()) throw UserError("the prompt has no tokens");
  if (static_cast<int>(prompt.size()) > model->context()) {
    throw UserError("the prompt has " + std::to_string(prompt.size()) +
                    " tokens, the context holds " + std::to_string(model->context()) + " (--ctx)");
  }

  const bool stream = o.json_path != "-";
  Session session(*model);
  Shadow shadow(o.shadow, *model);
  if (shadow.on()) session.set_hooks({.routed = [&](const RoutedChunk& c) { shadow.routed(c); }});
  StreamingDecoder decoder(tokenizer);
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (stream && !piece.empty()) std::cout << piece << std::flush;
  };
  const auto prefill_started = Clock::now();
  // Greedy, the token is chosen where the logits lie.
  const auto next = [&](std::span<const TokenId> fed) {
    return o.sampler.greedy ? session.feed_greedy(fed) : sampler.sample(session.feed(fed));
  };
  TokenId id = next(prompt);
  const double prefill_ms = ms_since(prefill_started);

  const auto decode_started = Clock::now();
  std::vector<TokenId> ids;
  std::string stop = "length";
  for (;;) {
    ids.push_back(id);
    if (tokenizer.is_stop(id)) {
      stop = "stop_token";
      break;
    }
    emit(decoder.push(id));
    if (static_cast<int>(ids.size()) == o.n) break;
    if (session.room() == 0) {
      stop = "context";
      break;
    }
    id = next({&ids.back(), 1});
  }
  emit(decoder.finish());
  const double decode_ms = ms_since(decode_started);
  if (stream) std::cout << '\n';
  shadow.close();
  std::cerr << shadow.text();
  if (stop == "context") {
    std::cerr << "stopped: the context of " << model->context() << " tokens is full (--ctx)\n";
  }

  // The first token comes out of the prefill; each later one is a decode step.
  const std::size_t steps = ids.size() - 1;
  log_armed(*model);
  write_json(o.json_path,
             nlohmann::json{{"schema", "assay-generate"},
                            {"schema_version", 1},
                            {"ids", ids},
                            {"text", text},
                            {"stop", stop},
                            {"timings",
                             {{"load_ms", load_ms},
                              {"prefill_ms", prefill_ms},
                              {"prefill_tokens", prompt.size()},
                              {"prefill_tokens_per_s", per_second(prompt.size(), prefill_ms)},
                              {"decode_ms", decode_ms},
                              {"decode_steps", steps},
                              {"decode_tokens_per_s", per_second(steps, decode_ms)}}},
                            {"shadow", shadow.json()},
                            {"armed", armed_json(*model)}}
                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

}  // namespace

extern const Command command_generate;
const Command command_generate{"generate", "model", "a reply to a prompt, streamed", run};

}  // namespace assay
