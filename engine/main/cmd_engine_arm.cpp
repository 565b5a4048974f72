// assay engine-arm: one arm of an engine round. A fresh process loads the model, runs every tier and ends; which variants it
// runs is for its environment to say.
#include <chrono>
#include <iostream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "engine/main/needle_read.h"
#include "engine/main/tier_tokens.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// One run of a tier: seconds of all that lies behind its depth, and what was written. A window is led by its text, so that
// every arm computes the same steps; other tiers go on with the model's own words.
double run_tier(Session& session, const TierTokens& t, bool led, std::vector<TokenId>& written) {
  session.reset();
  written.clear();
  TokenId next = 0;
  const std::span<const TokenId> depth(t.depth);
  const std::size_t ahead = led ? static_cast<std::size_t>(t.write) : 0;
  if (depth.size() > ahead) next = session.feed_greedy(depth.first(depth.size() - ahead));
  const auto start = Clock::now();
  if (!t.read.empty()) next = session.feed_greedy(t.read);
  for (int i = 0; i < t.write; ++i) {
    if (led) next = t.depth[depth.size() - ahead + static_cast<std::size_t>(i)];
    next = session.feed_greedy(std::span(&next, 1));
    written.push_back(next);
  }
  const auto stop = Clock::now();
  if (t.write == 0) written.push_back(next);
  return std::chrono::duration<double>(stop - start).count();
}

// "a,b" in its parts.
std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> names;
  std::stringstream list(text);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

int run(int argc, char** argv) {
  CommandLine app(
      "One arm of an engine round; started by `assay prove` and `assay ab --lane engine`.",
      "assay engine-arm",
      "assay engine-arm --model F --tiers natural --repeat 2");
  ModelOptions model_options;
  std::string tiers;
  std::string needles;
  int repeat = 2;
  add_model_options(app, model_options);
  app.add_option("--tiers", tiers, "names of bench/tiers.h");
  app.add_option("--needles", needles, "names of bench/needles.h: read and asked, not timed");
  app.add_option("--repeat", repeat, "timed runs of a tier, after one that is not timed");
  app.parse(argc, argv);
  if (repeat < 1 || repeat > 100) throw UserError("--repeat: 1 to 100");
  ModelSettings settings = resolve(model_options);
  if (tiers.empty() && needles.empty()) throw UserError("--tiers or --needles: name one");
  const auto names = listed(tiers);
  const auto checks = listed(needles);
  std::vector<TierTokens> work;
  std::vector<NeedleTokens> hidden;
  {
    const Tokenizer tokenizer = Tokenizer::load(GgufFile::open(model_options.model));
    for (const auto& name : names) work.push_back(tier_tokens(engine_tier(name), tokenizer));
    for (const auto& name : checks) hidden.push_back(needle_tokens(needle_check(name), tokenizer));
  }
  for (const TierTokens& t : work) settings.context = std::max(settings.context, t.total());
  for (const NeedleTokens& t : hidden) settings.context = std::max(settings.context, t.total());
  const auto model = open_model(model_options.model, settings);
  Session session(*model);
  json samples = json::object();
  json written = json::object();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool led = engine_tier(names[i]).endpoint == "window";
    std::vector<TokenId> ids;
    samples[names[i]] = json::array();
    for (int r = 0; r <= repeat; ++r) {
      const double s = run_tier(session, work[i], led, ids);
      if (r > 0) samples[names[i]].push_back(s);
    }
    written[names[i]] = ids;
  }
  json asked = json::object();
  for (std::size_t i = 0; i < checks.size(); ++i)
    asked[checks[i]] = read_needles(session, hidden[i]);
  json switches = json::object();
  for (const auto& [op, choice] : model->selection().choices) {
    if (choice.variant != "stock") switches[op] = choice.variant;
  }
  std::cout << json{{"switches", switches},
                    {"armed", armed_json(*model)},
                    {"samples", samples},
                    {"written", written},
                    {"needles", asked}}
                   .dump()
            << std::endl;
  return 0;
}

}  // namespace

extern const Command command_engine_arm;
const Command command_engine_arm{"engine-arm", "internal", "one arm of an engine round", run};

}  // namespace assay
