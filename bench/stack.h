// Rounds of a whole engine: the stack of chosen variants S, stock, and S without each member, every arm a fresh process, in
// orders balanced for first-order carry-over. What a member is worth is what its absence costs; singles are never added up.
#pragma once
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/plan.h"

namespace assay {

struct StackPlan {
  std::map<std::string, std::string> members;  // op -> variant that S runs
  std::string question =
      "whole";  // "whole": S against stock; "drop_one": also S without each member
  std::string backend = "host";
  std::string lane = "engine";  // "window" can say no more than STACK-MEMBER
  std::string numerics = "fast";
  int threads = 1;
  nlohmann::json model;              // {file_bytes, head_sha256}
  std::vector<PlanTier> tiers;       // bench/tiers.h
  std::vector<std::string> needles;  // bench/needles.h: asked of S and stock before the first round
  int rounds = 0;                    // a multiple of the orders there are; see rounds_for
  int burn_in_rounds = 1;
  int repeat = 2;  // timed runs of a tier in a process
  double alpha = 0.05;
  double bar = 1.015;
  double tier_min = 0.98;
};
nlohmann::json stack_plan_json(const StackPlan& plan);
// InputError naming `name` and the key.
StackPlan stack_plan_from_json(const nlohmann::json& document, const std::string& name);
std::string stack_plan_sha256(const StackPlan& plan);
// What a plan must be before anything runs: tiers that exist and are of its lane, weights that sum to 1, whole rounds.
// UserError naming which is not.
void check_stack_plan(const StackPlan& plan);
// A plan file: held to its schema and to the rules above. InputError naming `name` and the key or tier.
StackPlan read_stack_plan(const nlohmann::json& document, const std::string& name);

struct StackArm {
  char code = 'A';      // drawn by the plan's hash; the statistics see codes only
  std::string without;  // op that is missing; "" for S itself, "*" for stock
  std::map<std::string, std::string> switches;
};
// S, stock, and for drop_one with two members and more S without each.
std::vector<StackArm> stack_arms(const StackPlan& plan);
// Which arm (index into stack_arms) runs when: one order a round, burn-in rounds first.
std::vector<std::vector<int>> stack_schedule(const StackPlan& plan);
// The least number of rounds from `least` on that uses every order equally often.
int rounds_for(int arms, int least);

// From plan and runs of a record: {"analysis": .., "verdict": {word, reasons, kept, dropped}}. The same bits wherever it runs.
nlohmann::json analyse_stack(const nlohmann::json& record);
// What of a stored record does not follow from its plan and runs; empty: nothing.
std::vector<std::string> stack_faults(const nlohmann::json& record);
// One sentence of it.
std::string stack_sentence(const nlohmann::json& record);

}  // namespace assay
