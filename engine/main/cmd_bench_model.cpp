// assay bench-model: prefill and decode speed of a model at given depths. Single-arm: a verdict between two variants
// comes from `assay ab`, which pairs them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "kernels/base/build_id.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

struct Options {
  ModelOptions model;
  std::string prompt_tokens = "512";
  std::string depths = "0";
  int gen_tokens = 128;
  int repeat = 5;
  std::string json_path;
};

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app{"Prefill and decode speed at given depths", "assay bench-model"};
  house_style(app,
              "assay bench-model --model engine/models/tiny-gemma4-moe-q4_0.gguf --prompt-tokens "
              "512 --depth 0,1024");
  app.add_option("--prompt-tokens", o.prompt_tokens, "lengths of a prefill, 0: none")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--gen-tokens", o.gen_tokens, "decode steps, 0: none")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--depth", o.depths, "tokens already in the cache")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--repeat", o.repeat, "timed runs, after one that is not timed")
      ->type_name("N")
      ->capture_default_str();
  add_model_options(app, o.model);
  app.add_option("--json", o.json_path, "write all samples as JSON, - is stdout")
      ->type_name("PATH");
  parse_command_line(app, argc, argv);
  if (o.gen_tokens < 0) throw UserError("--gen-tokens: must be 0 or more");
  if (o.repeat < 1 || o.repeat > 1000) throw UserError("--repeat: must be 1..1000");
  return o;
}

// Token ids spread over the vocabulary: experts are met as evenly as the model allows.
std::vector<TokenId> random_ids(int n, int vocab) {
  Rng rng(seed_from_name("bench-model"));
  std::vector<TokenId> ids(static_cast<std::size_t>(n));
  for (auto& id : ids) id = static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(vocab)));
  return ids;
}

struct Row {
  const char* what;  // "prefill" or "decode"
  int tokens;
  int depth;
  std::vector<double> ms;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const std::size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

void measure(Session& session, const std::vector<TokenId>& ids, Row& row, int repeat) {
  const std::span<const TokenId> all(ids);
  const auto none = [](int) { return false; };
  const auto drop = [](int, std::span<const float>) {};
  for (int r = 0; r <= repeat; ++r) {
    session.reset();
    const auto depth = static_cast<std::size_t>(row.depth);
    const auto tokens = static_cast<std::size_t>(row.tokens);
    session.feed(all.first(depth), none, drop);
    const auto start = std::chrono::steady_clock::now();
    if (row.what[0] == 'p') {
      session.feed_greedy(
          all.subspan(depth, tokens));  // with the token after it, as a prompt needs
    } else {
      for (std::size_t i = 0; i < tokens; ++i) session.feed_greedy(all.subspan(depth + i, 1));
    }
    const auto stop = std::chrono::steady_clock::now();
    if (r > 0) row.ms.push_back(std::chrono::duration<double, std::milli>(stop - start).count());
  }
}

int run(int argc, char** argv) {
  Options o = parse(argc, argv);
  std::vector<Row> rows;
  int longest = 0;
  for (const int depth : parse_ids(o.depths, "--depth")) {
    if (depth < 0) throw UserError("--depth: must be 0 or more");
    for (const int tokens : parse_ids(o.prompt_tokens, "--prompt-tokens")) {
      if (tokens < 0) throw UserError("--prompt-tokens: must be 0 or more");
      if (tokens > 0) rows.push_back({"prefill", tokens, depth, {}});
    }
    if (o.gen_tokens > 0) rows.push_back({"decode", o.gen_tokens, depth, {}});
  }
  if (rows.empty())
    throw UserError("nothing to measure: --prompt-tokens and --gen-tokens are both 0");
  for (const auto& row : rows) longest = std::max(longest, row.depth + row.tokens);
  if (o.model.ctx == 0) o.model.ctx = longest;
  if (o.model.ctx < longest) {
    throw UserError("--ctx " + std::to_string(o.model.ctx) + ": the longest run needs " +
                    std::to_string(longest));
  }

  const auto model = open_model(o.model);
  const auto ids = random_ids(longest, model->config().vocab);
  Session session(*model);
  Progress progress("bench-model", rows.size());
  auto list = nlohmann::json::array();
  std::size_t done = 0;
  for (auto& row : rows) {
    measure(session, ids, row, o.repeat);
    progress.update(++done);
  }
  const bool print = o.json_path != "-";
  if (print) {
    std::printf("%-8s %8s %8s %14s %14s %14s\n",
                "test",
                "tokens",
                "depth",
                "median tok/s",
                "slowest",
                "fastest");
  }
  for (const auto& row : rows) {
    const auto rate = [&](double ms) { return 1000.0 * row.tokens / ms; };
    const double mid = rate(median(row.ms));
    const double slow = rate(*std::max_element(row.ms.begin(), row.ms.end()));
    const double fast = rate(*std::min_element(row.ms.begin(), row.ms.end()));
    if (print) {
      std::printf(
          "%-8s %8d %8d %14.1f %14.1f %14.1f\n", row.what, row.tokens, row.depth, mid, slow, fast);
    }
    list.push_back({{"test", row.what},
                    {"tokens", row.tokens},
                    {"depth_tokens", row.depth},
                    {"time_ms", row.ms},
                    {"median_tokens_per_s", mid},
                    {"slowest_tokens_per_s", slow},
                    {"fastest_tokens_per_s", fast}});
  }
  log_armed(*model);
  write_json(o.json_path,
             nlohmann::json{{"schema", "assay-bench-model"},
                            {"schema_version", 1},
                            {"build", build_line()},
                            {"card", model->device().name},
                            {"backend", to_string(model->backend())},
                            {"numerics", to_string(model->numerics())},
                            {"kv", to_string(model->kv_type())},
                            {"threads", model->threads()},
                            {"chunk_tokens", model->chunk()},
                            {"weights_bytes", model->weights().bytes()},
                            {"cache_bytes", session.cache().bytes()},
                            {"planned_bytes", model->plan().total()},
                            {"rows", list},
                            {"armed", armed_json(*model)}}
                 .dump());
  return 0;
}

}  // namespace

extern const Command command_bench_model;
const Command command_bench_model{"bench-model", "model", "prefill and decode speed", run};

}  // namespace assay
