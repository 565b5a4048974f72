// assay logits: the model's logits at given positions of a given sequence.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "engine/sampler.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

struct Options {
  ModelOptions model;
  std::optional<std::string> ids;
  std::string ids_file;
  std::string positions = "all";
  std::string raw_path;
  bool step = false;
  std::string route_from;
  std::string json_path;
};

Options parse(int argc, char** argv) {
  Options o;
  CommandLine app("Logits of a given sequence",
                  "assay logits",
                  "assay logits --model engine/models/tiny-gemma4-moe-q4_0.gguf --ids 2,5,2130 "
                  "--positions last "
                  "--raw last.f32");
  CommandLine& source = app.exactly_one_of("sequence");
  source.add_option("--ids", o.ids, "token ids: 2,5,..").type_name("IDS");
  source.add_option("--ids-file", o.ids_file, "the same in a file").type_name("FILE");
  app.add_option("--positions", o.positions, "all, last, or a list: 0,7")
      .type_name("LIST")
      .show_default();
  app.add_option("--raw", o.raw_path, "rows of n_vocab float32, little endian, positions rising")
      .type_name("OUT");
  app.add_flag("--step", o.step, "feed token by token instead of in chunks");
  app.add_option(
         "--route-from", o.route_from, "exact: take the experts that the exact lane chooses")
      .type_name("LANE");
  add_model_options(app, o.model);
  app.add_option("--json", o.json_path, "write {positions, vocab, argmax, armed}, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);
  if (!o.route_from.empty() && o.route_from != "exact") {
    throw UserError("--route-from '" + o.route_from + "': valid is exact");
  }
  return o;
}

std::set<int> wanted_positions(const std::string& text, std::size_t tokens) {
  std::set<int> wanted;
  if (text == "last") return {static_cast<int>(tokens) - 1};
  if (text == "all") {
    for (std::size_t i = 0; i < tokens; ++i) wanted.insert(static_cast<int>(i));
    return wanted;
  }
  for (const TokenId p : parse_ids(text, "--positions", "a position")) {
    if (p < 0 || p >= static_cast<int>(tokens)) {
      throw UserError("--positions " + std::to_string(p) + ": the sequence has positions 0.." +
                      std::to_string(tokens - 1));
    }
    wanted.insert(p);
  }
  return wanted;
}

// The experts that the exact lane gives to every token.
RouteTable exact_routes(const Options& o, const std::vector<TokenId>& ids) {
  ModelOptions exact = o.model;
  exact.numerics = "exact";
  exact.kv = "f32";
  ModelSettings settings = resolve(exact);
  settings.strict = false;  // the switches are for the lane that is asked about
  const auto model = open_model(o.model.model, settings);
  RouteTable table(model->config().layers, model->config().experts_used);
  Session session(*model);
  session.set_hooks({.routed = [&](const RoutedChunk& chunk) { table.record(chunk); }});
  session.feed(
      ids, [](int) { return false; }, [](int, std::span<const float>) {});
  return table;
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  const auto ids =
      o.ids ? parse_ids(*o.ids, "--ids") : parse_ids(read_file(o.ids_file), o.ids_file.c_str());
  const auto wanted = wanted_positions(o.positions, ids.size());
  const ModelSettings settings = resolve(o.model);
  std::optional<RouteTable> routes;
  if (!o.route_from.empty()) routes = exact_routes(o, ids);

  const auto model = open_model(o.model.model, settings);
  Session session(*model);
  if (routes) session.set_hooks({.routes = &*routes});
  std::optional<OutputFile> raw;
  if (!o.raw_path.empty()) raw.emplace(o.raw_path);
  std::vector<int> positions;
  std::vector<TokenId> best;
  const auto wants = [&](int p) { return wanted.contains(p); };
  const auto sink = [&](int p, std::span<const float> row) {
    positions.push_back(p);
    best.push_back(static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
    if (raw) raw->write(row.data(), row.size_bytes());
  };
  if (o.step) {
    for (const TokenId& id : ids) session.feed({&id, 1}, wants, sink);
  } else {
    session.feed(ids, wants, sink);
  }
  if (raw) raw->finish();
  log_armed(*model);

  write_json(o.json_path,
             nlohmann::json{{"schema", "assay-logits"},
                            {"schema_version", 1},
                            {"vocab", model->config().vocab},
                            {"positions", positions},
                            {"argmax", best},
                            {"armed", armed_json(*model)}}
                 .dump());
  if (o.raw_path.empty() && o.json_path != "-") {
    std::cout << "position  most likely next token\n";
    for (std::size_t i = 0; i < best.size(); ++i) {
      std::cout << positions[i] << "  " << best[i] << "  "
                << nlohmann::json(model->tokenizer().token_bytes(best[i], true))
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << '\n';
    }
  }
  return 0;
}

}  // namespace

extern const Command command_logits;
const Command command_logits{"logits", "model", "logits at given positions", run};

}  // namespace assay
