// assay plan: writes the plan of an A/B, to be looked at, committed and run.
#include <cmath>
#include <filesystem>
#include <iostream>

#include <nlohmann/json.hpp>

#include "bench/ledger.h"
#include "engine/main/ab_gates.h"
#include "engine/main/command.h"
#include "engine/main/engine_rounds.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

// What both kinds of plan say when they are written.
json written(const std::string& hash, const std::string& out, std::size_t runs) {
  return {{"schema", "assay-plan-written"},
          {"schema_version", 1},
          {"plan_sha256", hash},
          {"path", out},
          {"planned_mde", nullptr},
          {"runs", runs}};
}

void write_plan(const std::string& out, const json& plan) {
  const std::string text = plan.dump(1) + "\n";
  OutputFile file(out);
  file.write(text.data(), text.size());
  file.finish();
}

int write_rounds(const PlanFlags& flags,
                 std::string model,
                 const std::string& out,
                 const std::string& json_path) {
  if (model.empty()) model = shipped_model();
  if (!std::filesystem::is_regular_file(model))
    throw InputError("--model '" + model + "': no such file");
  protect_input(model);
  const StackPlan plan = rounds_from_flags(flags, model);
  write_plan(out, stack_plan_json(plan));
  const std::string hash = stack_plan_sha256(plan);
  const std::size_t runs = stack_schedule(plan).size() * stack_arms(plan).size();
  write_json(json_path, written(hash, out, runs).dump());
  if (json_path == "-") return 0;
  std::cout << "plan " << hash.substr(0, 16) << " in " << out << ": " << flags.op << "/" << flags.b
            << " against stock in lane " << plan.lane << ", " << plan.rounds << " rounds, " << runs
            << " process starts, tiers";
  for (const PlanTier& t : plan.tiers) std::cout << ' ' << t.id;
  std::cout << '\n';
  return 0;
}

int run(int argc, char** argv) {
  CommandLine app(
      "Write the plan of an A/B: arms, tiers, pairs, bars. Its hash fixes the order of the runs.",
      "assay plan",
      "assay plan --op gemv_quant --b avx2 --out plan.json");
  PlanFlags flags;
  std::string out;
  std::string json_path;
  std::string stage;
  std::string results = "results";
  std::string model;
  int family_size = 1;
  double extension_s0 = 0.0;
  int max_pairs = 24;
  add_plan_flags(app, flags);
  app.add_option("--stage", stage, "screen or confirm; default: confirm");
  app.add_option("--family-size",
                 family_size,
                 "members confirmed together; the claim must hold at alpha / N")
      .show_default();
  app.add_option("--extension-s0",
                 extension_s0,
                 "allow extension by the e-process with this frozen A/A sd (log scale)");
  app.add_option("--max-pairs", max_pairs, "end of the extension").show_default();
  app.add_option("--results", results, "folder with earlier records, for the planned MDE")
      .show_default();
  app.add_option("--model", model, "lanes window and engine: the model; default: the shipped one");
  app.add_option("--out", out, "plan file to write").required();
  app.add_option("--json", json_path, "write the outcome as JSON to PATH, or to stdout for -");
  app.parse(argc, argv);
  if (!stage.empty() && stage != "screen" && stage != "confirm")
    throw UserError("--stage " + stage + ": screen or confirm");
  if (flags.op.empty()) throw UserError("--op: name the op");
  if (flags.lane == "engine" || flags.lane == "window") {
    if (!stage.empty() || family_size != 1 || extension_s0 != 0.0)
      throw UserError("--stage, --family-size and --extension-s0 are for the micro lane");
    return write_rounds(flags, model, out, json_path);
  }

  Plan plan = plan_from_flags(flags);
  if (!stage.empty()) plan.stage = stage;
  plan.family_size = family_size;
  if (extension_s0 != 0.0) plan.extension = PlanExtension{extension_s0, max_pairs};
  check_plan(plan);
  write_plan(out, plan_json(plan));

  const PlannedPower power = planned_power(plan, aa_pool(plan, results, true).d);
  const std::string hash = plan_sha256(plan);
  json outcome = written(hash, out, 2 * make_schedule(plan).pairs.size());
  if (power.known) outcome["planned_mde"] = power.mde;
  write_json(json_path, outcome.dump());
  if (json_path == "-") return 0;
  std::cout << "plan " << hash.substr(0, 16) << " in " << out << ": " << plan.op << "/" << plan.b
            << " against " << plan.a << ", " << plan.pairs << " pairs, "
            << 2 * make_schedule(plan).pairs.size() << " process starts, tiers";
  for (const PlanTier& t : plan.tiers) std::cout << ' ' << t.id;
  std::cout << '\n';
  if (power.known) {
    std::printf("planned MDE %.2f %% (A/A sd %.2f %%), bar %.2f %%\n",
                std::expm1(power.mde) * 100.0,
                power.sd * 100.0,
                (plan.bar - 1.0) * 100.0);
  } else {
    std::cout << "planned MDE unknown: no A/A pool for this card, op and tiers below " << results
              << '\n';
  }
  return 0;
}

}  // namespace

extern const Command command_plan;
const Command command_plan{"plan", "lab", "write the plan of an A/B", run};

}  // namespace assay
