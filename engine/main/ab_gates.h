// What stands before a timing: the plan from flags, the parity check by this very binary, the A/A pool, the peer.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/plan.h"
#include "kernels/base/op_info.h"

namespace CLI {
class App;
}

namespace assay {

struct PlanFlags {
  std::string op;
  std::string b;
  std::string a = "stock";
  std::string lane = "micro";
  std::string protocol = "signed-rank";
  std::string numerics;
  std::vector<std::string> tiers;
  int pairs = 12;
  int threads = 1;
  int blocks = 30;
  double bar = 1.015;
  bool underpowered = false;
};
void add_plan_flags(CLI::App& app, PlanFlags& flags);
// UserError for an unknown op, variant, tier or lane.
Plan plan_from_flags(const PlanFlags& flags);
// Op, variants and tiers of a plan exist in this build and are eligible here; UserError naming what is not.
void check_plan_against(const Plan& plan, const OpInfo& op);

nlohmann::json parse_json_file(const std::string& path);  // InputError naming the byte

struct ParityGate {
  nlohmann::json record;   // assay-parity, unsealed; null when no case was compared
  nlohmann::json summary;  // goes into the A/B record
  std::vector<std::string> faults;
};
// Every case of the op, in this process, by the variant's declared class.
ParityGate run_parity_gate(const OpInfo& op, const std::string& variant);

// A/A pool from the records below `out`, machine, sources, peer.
AbInputs gather_inputs(const Plan& plan,
                       const ParityGate& gate,
                       const std::string& out,
                       bool scratch,
                       const std::string& peer_path);
// Appends the parity record to `folder` and enters its hash in the gate's summary.
void store_parity(ParityGate& gate, const std::string& folder);

}  // namespace assay
