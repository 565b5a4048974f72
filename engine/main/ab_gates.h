// What stands before a timing: the plan from flags, the parity check by this very binary, the A/A pool, the peer.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/plan.h"
#include "kernels/base/op_info.h"

namespace assay {

class CommandLine;

struct PlanFlags {
  std::string op;
  std::string b;
  std::string a = "stock";
  std::string lane = "micro";
  std::string protocol = "signed-rank";
  std::string numerics;
  std::vector<std::string> tiers;
  std::vector<std::string> needles{"needle_512"};  // lane engine; {"none"}: none
  int pairs = 12;
  int threads = 1;
  int blocks = 30;
  double bar = 1.015;
  bool underpowered = false;
  double injected = 0.0;
  std::string backend = "host";
  std::string
      regime;  // empty: hot on the host; on a card cold-rotate for what reads weights or the cache, else hot
  int block_us = 2000;
};
// The op of a plan: on a card with its timing cases.
const OpInfo& op_of(const std::string& name, const std::string& backend);
void add_plan_flags(CommandLine& app, PlanFlags& flags);
// UserError for an unknown op, variant, tier or lane.
Plan plan_from_flags(const PlanFlags& flags);
// Op, variants and tiers of a plan exist in this build and are eligible here; UserError naming what is not.
void check_plan_against(const Plan& plan, const OpInfo& op);

nlohmann::json parse_json_file(const std::string& path);  // InputError naming the byte

// What the parity check of one variant found.
struct ParityGate {
  nlohmann::json summary;  // goes into the A/B record; "outcome": pass or fail
  std::vector<std::string> faults;
  bool passed() const { return summary.at("outcome") == "pass"; }
};
// The summary of a stored parity record of this binary, in place of a new check.
ParityGate parity_gate_of(const nlohmann::json& record);
// Every case of the op by the variant's declared class, in a child process of this very binary, so that a variant that
// crashes is a failed parity and not the end of the sitting. The child appends its record to <folder>/parity_<op>.jsonl.
ParityGate run_parity_gate(const OpInfo& op,
                           const std::string& variant,
                           const std::string& backend,
                           const std::string& folder);
// The child's side: runs, appends the record, prints the summary as one line of JSON.
int serve_parity_gate(const std::string& op,
                      const std::string& variant,
                      const std::string& backend,
                      const std::string& record_path);

// A/A log ratios of earlier records and which records they are of.
struct AaPool {
  std::vector<double> d;
  std::vector<std::string> records;
};
struct SittingOptions {
  std::string out = "results";
  bool scratch = false;
  std::string peer_path;
  std::optional<AaPool> pool;  // default: aa_pool below `out`
};
// One sitting from gate to stored record: A/A pool, ledger, runs, record, ledger. Returns the sealed record; `path` is where
// it lies. CheckError when parity failed: nothing is timed then, and the ledger says so.
nlohmann::json run_sitting(const Plan& plan,
                           const OpInfo& op,
                           const ParityGate& gate,
                           const SittingOptions& options,
                           std::string& path);
// From the records below `out` of the same card, lane, op, tiers and thread count.
AaPool aa_pool(const Plan& plan, const std::string& out, bool scratch);

// The newest stored calibration's cell of protocol abg4, all scenarios together: {covered, repetitions, record}; null when none
// is stored below `out`.
nlohmann::json measured_abg4(const std::string& out);

// A dirty build, and one whose card is the CPU executor, may only be used with --scratch. UserError.
void require_clean(bool scratch, const std::string& backend = "host");

}  // namespace assay
