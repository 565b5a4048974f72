// assay bench-model: prefill and decode speed of a model at given depths. Single-arm: a verdict between two variants
// comes from `assay ab`, which pairs them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/peer.h"
#include "bench/stats.h"
#include "engine/main/command.h"
#include "engine/main/engine_rounds.h"
#include "engine/main/model_options.h"
#include "engine/main/record_options.h"
#include "engine/main/tier_tokens.h"
#include "kernels/base/command_line.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "kernels/base/program.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

struct Options {
  ModelOptions model;
  std::string prompt_tokens = "512";
  std::string depths = "0";
  std::string tiers;
  int gen_tokens = 128;
  int repeat = 5;
  std::string peer_path;
  std::string no_peer = "no outside engine was run beside this one";
  RecordOptions record_to;
};

Options parse(int argc, char** argv) {
  Options o;
  CommandLine app(
      "Prefill and decode speed at given depths",
      "assay bench-model",
      "assay bench-model --model engine/models/tiny-gemma4-moe-q4_0.gguf --prompt-tokens "
      "512 --depth 0,1024");
  app.add_option("--prompt-tokens", o.prompt_tokens, "lengths of a prefill, 0: none")
      .type_name("LIST")
      .show_default();
  app.add_option("--gen-tokens", o.gen_tokens, "decode steps, 0: none")
      .type_name("N")
      .show_default();
  app.add_option("--depth", o.depths, "tokens already in the cache")
      .type_name("LIST")
      .show_default();
  app.add_option("--tier",
                 o.tiers,
                 "named workloads in place of the three flags above, e.g. pinned,ttft_17,agent")
      .type_name("LIST");
  app.add_option("--repeat", o.repeat, "timed runs, after one that is not timed")
      .type_name("N")
      .show_default();
  add_model_options(app, o.model);
  app.add_option("--peer", o.peer_path, "output of llama-bench -o json, same file and sitting")
      .type_name("FILE");
  app.add_option("--no-peer", o.no_peer, "why a row has no peer").type_name("REASON");
  add_record_options(app, o.record_to);
  app.parse(argc, argv);
  check_record_options(o.record_to);
  if (o.no_peer.empty()) throw UserError("--no-peer: give the reason in words");
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
  std::string tier = "";          // bench/tiers.h; empty: ids spread over the vocabulary
  std::vector<TokenId> ids = {};  // of the tier: depth and what follows
};

// The rows of named tiers: reading what they read behind their depth, then writing behind that.
std::vector<Row> tier_rows(const std::string& list, const std::string& model) {
  protect_input(model);
  const Tokenizer tokenizer = Tokenizer::load(GgufFile::open(model));
  std::vector<Row> rows;
  std::stringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    const TierTokens tokens = tier_tokens(engine_tier(name), tokenizer);
    std::vector<TokenId> ids = tokens.depth;
    ids.insert(ids.end(), tokens.read.begin(), tokens.read.end());
    const int depth = static_cast<int>(tokens.depth.size());
    const int read = static_cast<int>(tokens.read.size());
    if (read > 0) rows.push_back({"prefill", read, depth, {}, name, ids});
    if (tokens.write > 0) rows.push_back({"decode", tokens.write, depth + read, {}, name, ids});
  }
  if (rows.empty()) throw UserError("--tier: no name given");
  return rows;
}

std::vector<Row> spread_rows(const Options& o) {
  std::vector<Row> rows;
  for (const int depth : parse_ids(o.depths, "--depth", "a number of tokens")) {
    if (depth < 0) throw UserError("--depth: must be 0 or more");
    for (const int tokens : parse_ids(o.prompt_tokens, "--prompt-tokens", "a number of tokens")) {
      if (tokens < 0) throw UserError("--prompt-tokens: must be 0 or more");
      if (tokens > 0) rows.push_back({"prefill", tokens, depth, {}});
    }
    if (o.gen_tokens > 0) rows.push_back({"decode", o.gen_tokens, depth, {}});
  }
  if (rows.empty())
    throw UserError("nothing to measure: --prompt-tokens and --gen-tokens are both 0");
  return rows;
}

// Tensor bytes may differ a little between readers (padding, what is counted); another file differs by more.
void check_same_file(const PeerRun& peer, std::size_t weights_bytes, const std::string& path) {
  const double ratio = static_cast<double>(peer.model_bytes) / static_cast<double>(weights_bytes);
  if (ratio < 0.98 || ratio > 1.02)
    throw InputError(path + ": model_size " + std::to_string(peer.model_bytes) +
                     ": another model, this one has " + std::to_string(weights_bytes) + " bytes");
}

// The outside engine's figure for a row, and ours over it.
nlohmann::json peer_json(const std::optional<PeerRun>& peer,
                         const Row& row,
                         const Options& o,
                         double mine) {
  const PeerRate* rate = peer ? peer->find(row.what[0] == 'p', row.tokens, row.depth) : nullptr;
  if (rate == nullptr)
    return {{"name", nullptr}, {"reason", peer ? o.peer_path + " has no such test" : o.no_peer}};
  return {{"name", peer->name},
          {"version", peer->version},
          {"device", peer->device},
          {"threads", peer->threads},
          {"tokens_per_s", rate->tokens_per_s},
          {"samples_tokens_per_s", rate->samples},
          {"ratio", mine / rate->tokens_per_s}};
}

void measure(Session& session, const std::vector<TokenId>& spread, Row& row, int repeat) {
  const std::span<const TokenId> all(row.tier.empty() ? spread : row.ids);
  for (int r = 0; r <= repeat; ++r) {
    session.reset();
    const auto depth = static_cast<std::size_t>(row.depth);
    const auto tokens = static_cast<std::size_t>(row.tokens);
    // Waits for its answer: what a card still computes of it must not be timed.
    TokenId next = 0;
    if (depth > 0) next = session.feed_greedy(all.first(depth));
    const auto start = std::chrono::steady_clock::now();
    if (row.what[0] == 'p') {
      session.feed_greedy(
          all.subspan(depth, tokens));  // with the token after it, as a prompt needs
    } else {
      for (std::size_t i = 0; i < tokens; ++i) {
        // A tier goes on with the model's own words; without one, experts are to be met evenly.
        if (row.tier.empty()) next = all[depth + i];
        next = session.feed_greedy(std::span(&next, 1));
      }
    }
    const auto stop = std::chrono::steady_clock::now();
    if (r > 0) row.ms.push_back(std::chrono::duration<double, std::milli>(stop - start).count());
  }
}

int run(int argc, char** argv) {
  Options o = parse(argc, argv);
  int longest = 0;
  std::vector<Row> rows = o.tiers.empty() ? spread_rows(o) : tier_rows(o.tiers, o.model.model);
  for (const auto& row : rows) longest = std::max(longest, row.depth + row.tokens);
  if (o.model.ctx == 0) o.model.ctx = longest;
  if (o.model.ctx < longest) {
    throw UserError("--ctx " + std::to_string(o.model.ctx) + ": the longest run needs " +
                    std::to_string(longest));
  }

  std::optional<PeerRun> peer;
  if (!o.peer_path.empty()) peer = parse_llama_bench(read_file(o.peer_path), o.peer_path);
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
  if (peer) check_same_file(*peer, model->weights().bytes(), o.peer_path);
  const bool print = !o.record_to.quiet();
  if (print) {
    std::printf("%-8s %8s %8s %14s %14s %14s %10s\n",
                "test",
                "tokens",
                "depth",
                "median tok/s",
                "slowest",
                "fastest",
                "of peer");
  }
  for (const auto& row : rows) {
    const auto rate = [&](double ms) { return 1000.0 * row.tokens / ms; };
    const double mid = rate(stats::median(row.ms));
    const double slow = rate(*std::max_element(row.ms.begin(), row.ms.end()));
    const double fast = rate(*std::min_element(row.ms.begin(), row.ms.end()));
    const auto beside = peer_json(peer, row, o, mid);
    if (print) {
      std::printf("%-8s %8d %8d %14.1f %14.1f %14.1f %10s\n",
                  row.what,
                  row.tokens,
                  row.depth,
                  mid,
                  slow,
                  fast,
                  beside.contains("ratio")
                      ? fmt::format("x{:.2f}", beside["ratio"].get<double>()).c_str()
                      : "none");
    }
    list.push_back({{"test", row.what},
                    {"tokens", row.tokens},
                    {"depth_tokens", row.depth},
                    {"time_ms", row.ms},
                    {"median_tokens_per_s", mid},
                    {"slowest_tokens_per_s", slow},
                    {"fastest_tokens_per_s", fast},
                    {"peer", beside}});
    if (!row.tier.empty()) list.back()["tier"] = row.tier;
  }
  log_armed(*model);
  auto record = record_frame("assay-bench-model", model->device());
  record.update({{"model", model_json(o.model.model)},
                 {"numerics", to_string(model->numerics())},
                 {"kv", to_string(model->kv_type())},
                 {"threads", model->threads()},
                 {"chunk_tokens", model->chunk()},
                 {"weights_bytes", model->weights().bytes()},
                 {"cache_bytes", session.cache().bytes()},
                 {"planned_bytes", model->plan().total()},
                 {"rows", list},
                 {"armed", armed_json(*model)}});
  store_record(o.record_to, std::move(record), "bench_model.jsonl");
  return 0;
}

}  // namespace

extern const Command command_bench_model;
const Command command_bench_model{"bench-model", "model", "prefill and decode speed", run};

}  // namespace assay
