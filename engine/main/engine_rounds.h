// Runs the rounds of bench/stack.h: one fresh process of this program an arm, and the record of what they said.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/campaign.h"
#include "bench/stack.h"

namespace assay {

// What tells two model files apart without reading all of a large one: its size and the hash of its first 16 MiB.
nlohmann::json model_json(const std::string& path);

// The model that the repository ships, found beside the results folder; empty when there is none.
std::string shipped_model();

struct PlanFlags;  // engine/main/ab_gates.h
// The plan of one variant against stock in the lanes engine and window. UserError naming the flag.
StackPlan rounds_from_flags(const PlanFlags& flags, const std::string& model);

struct EngineRounds {
  std::string model;
  std::string out = "results";
  bool scratch = false;
  double seconds_left =
      0.0;  // 0: no limit; else nothing is kept when the rounds would not end in time
};
// The sealed record, appended to <folder>/stack.jsonl, every member in the ledger before the first run and after the last; nothing when the time does not suffice, which is judged after the
// burn-in and from its length alone. A failing arm ends the rounds and is in the record.
std::optional<nlohmann::json> run_engine_rounds(const StackPlan& plan, const EngineRounds& options);

// The earliest stored record of this plan, card, build and sources; null pointer when there is none.
const nlohmann::json* standing_stack(const std::vector<nlohmann::json>& records,
                                     const StackPlan& plan,
                                     const Standing& now);

}  // namespace assay
