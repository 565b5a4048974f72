// assay stages: intermediate tensors of chosen layers, for comparing with another implementation.
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "engine/main/model_options.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"

namespace assay {
namespace {

struct Options {
  ModelOptions model;
  std::string ids;
  std::string layers = "0";
  std::string dir;
  std::string json_path;
};

Options parse(int argc, char** argv) {
  Options o;
  CommandLine app("Intermediate tensors of chosen layers as raw float32",
                  "assay stages",
                  "assay stages --model engine/models/tiny-gemma4-moe-q4_0.gguf --ids 2,5,2130 "
                  "--layers 0,5 --dir out");
  app.add_option("--ids", o.ids, "token ids: 2,5,..").required().type_name("IDS");
  app.add_option("--layers", o.layers, "all, or a list: 0,5").type_name("LIST").show_default();
  app.add_option("--dir", o.dir, "folder for stage.blk<N>.<name>.f32 and index.json")
      .required()
      .type_name("DIR");
  add_model_options(app, o.model);
  app.add_option("--json", o.json_path, "write the index also here, - is stdout").type_name("PATH");
  app.parse(argc, argv);
  return o;
}

std::vector<int> shape_of(const StageChunk& c, const LayerConfig& layer, int tokens) {
  const std::string name = c.name;
  if (name == "q_normed") return {tokens, layer.heads, layer.head_dim};
  if (name == "k_normed" || name == "v_normed") return {tokens, layer.kv_heads, layer.head_dim};
  return {tokens, c.width};
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  const auto ids = parse_ids(o.ids, "--ids");
  const auto model = open_model(o.model);
  const ModelConfig& config = model->config();
  std::set<int> layers;
  if (o.layers == "all") {
    for (int i = 0; i < config.layers; ++i) layers.insert(i);
  } else {
    for (const int i : parse_ids(o.layers, "--layers", "a layer")) {
      if (i < 0 || i >= config.layers) {
        throw UserError("--layers " + std::to_string(i) + ": the model has layers 0.." +
                        std::to_string(config.layers - 1));
      }
      layers.insert(i);
    }
  }
  std::error_code error;
  std::filesystem::create_directories(o.dir, error);
  if (error) throw UserError("--dir " + o.dir + ": " + error.message());

  std::map<std::string, std::string> rows;  // raw little-endian floats by key
  nlohmann::json arrays = nlohmann::json::object();
  Session session(*model);
  session.set_hooks({.stage = [&](const StageChunk& c) {
    if (!layers.contains(c.layer)) return;
    const std::string key = "stage.blk" + std::to_string(c.layer) + "." + c.name;
    rows[key].append(
        reinterpret_cast<const char*>(c.data),
        sizeof(float) * static_cast<std::size_t>(c.tokens) * static_cast<std::size_t>(c.width));
    arrays[key] = {
        {"file", key + ".f32"},
        {"dtype", "f32"},
        {"shape",
         shape_of(
             c, config.layer[static_cast<std::size_t>(c.layer)], static_cast<int>(ids.size()))}};
  }});
  session.feed(ids);
  for (const auto& [key, bytes] : rows) write_file_atomic(o.dir + "/" + key + ".f32", bytes);
  const std::string index = nlohmann::json{
      {"schema", "assay-stages"},
      {"schema_version", 1},
      {"ids", ids},
      {"arrays", arrays}}.dump(1);
  write_file_atomic(o.dir + "/index.json", index + "\n");
  log_armed(*model);
  write_json(o.json_path, index);
  if (o.json_path != "-") {
    std::cout << rows.size() << " tensors of " << ids.size() << " tokens in " << o.dir << '\n';
  }
  return 0;
}

}  // namespace

extern const Command command_stages;
const Command command_stages{"stages", "model", "intermediate tensors of chosen layers", run};

}  // namespace assay
