// The flags that every program with --model shares, and what they mean.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/forward.h"

namespace assay {

struct Arming;  // kernels/base/proven.h
class CommandLine;

struct ModelOptions {
  std::string model;
  std::string backend = "host";
  std::string numerics = "fast";
  std::string kv;  // empty: f32 in the exact lane, else f16
  std::string profile = "stock";
  int threads = 0;               // 0: all of the machine
  int ctx = 0;                   // 0: the trained context, at most kDefaultContext
  double vram_budget_gib = 0.0;  // 0: not given
};

// --model --backend --numerics --kv --profile --threads --ctx --vram-budget
void add_model_options(CommandLine& app, ModelOptions& options);

// Reads the switches from the environment and the profile, and checks every value. UserError (exit 2) listing what is
// valid, InputError (3) for a profile that is no profile, HardwareError (77) for a backend that this build or machine
// lacks.
// `armed`: gets what the profile armed by its proofs.
ModelSettings resolve(const ModelOptions& options, Arming* armed = nullptr);

// resolve() and load. Logs which variants are armed and what an armed composite hides.
std::unique_ptr<Model> open_model(const ModelOptions& options);
std::unique_ptr<Model> open_model(const std::string& path, const ModelSettings& settings);

// What every op with a choice other than stock did: calls served, fallbacks, and under parity: the worst differences.
// [{op, variant, source, parity, selected, stock, fallback, ...}]
nlohmann::json armed_json(const Model& model);
// The same as log lines on stderr; nothing when all ops run stock.
void log_armed(const Model& model);

// "2,5,7" or "[2, 5, 7]" or white space between: token ids, or other whole numbers that `what` names. UserError naming
// `flag` and the first bad word.
std::vector<TokenId> parse_ids(std::string_view text,
                               const char* flag,
                               const char* what = "a token id");

}  // namespace assay
