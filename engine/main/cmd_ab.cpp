// assay ab: one paired comparison, from plan to record.
#include <cmath>
#include <filesystem>
#include <iostream>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/analysis.h"
#include "bench/process.h"
#include "bench/stack.h"
#include "bench/tiers.h"
#include "engine/main/ab_gates.h"
#include "engine/main/command.h"
#include "engine/main/engine_rounds.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

// The source protocol's answer, beside ours. `measured`: a calibration record's coverage of it, or null.
void print_abg4(const json& four, const json& measured) {
  std::cout << "abg4: four alternating pairs";
  for (const json& r : four.at("ratios")) std::printf(" x%.4f", r.get<double>());
  std::printf(", median x%.4f, bootstrap [x%.4f, x%.4f]: %s\n",
              four.at("median_ratio").get<double>(),
              four.at("interval")[0].get<double>(),
              four.at("interval")[1].get<double>(),
              four.at("meets_bar").get<bool>() ? "meets the source protocol's bar"
                                               : "under the source protocol's bar");
  if (measured.is_null()) {
    std::printf(
        "abg4: that interval covers %.1f %% by counting, not 95 %%; no calibration is stored\n",
        four.at("coverage").get<double>() * 100.0);
  } else {
    std::printf(
        "abg4: that interval covered %.1f %% of %d trials, not 95 %% (calibration %s)\n",
        100.0 * measured.at("covered").get<double>() / measured.at("repetitions").get<double>(),
        measured.at("repetitions").get<int>(),
        measured.at("record").get<std::string>().c_str());
  }
}

void print_answer(const json& record, const std::string& path, const json& abg4_measured) {
  const json& a = record.at("analysis");
  std::cout << (record.at("scratch").get<bool>() ? "SCRATCH, not citable. " : "")
            << verdict_sentence(record) << '\n';
  const auto percent = [](const json& log_ratio) {
    char text[32];
    std::snprintf(text, sizeof text, "%+.2f %%", std::expm1(log_ratio.get<double>()) * 100.0);
    return std::string(text);
  };
  if (!a.at("bootstrap_legacy").is_null()) {
    const json& b = a["bootstrap_legacy"];
    char coverage[64];
    std::snprintf(coverage,
                  sizeof coverage,
                  "covers %.1f %%, not 95 %%",
                  b["coverage_percentile"].get<double>() * 100.0);
    std::cout << "legacy bootstrap  [" << percent(b["percentile"][0]) << ", "
              << percent(b["percentile"][1]) << "]  (" << coverage << ")\n";
  }
  if (a.contains("abg4")) print_abg4(a["abg4"], abg4_measured);
  if (!a.at("interval").is_null()) {
    std::cout << "signed rank       [" << percent(a["interval"][0]) << ", "
              << percent(a["interval"][1]) << "]\n";
  }
  if (!a.at("beta").is_null()) {
    std::cout << "order effect      " << percent(a["beta"])
              << (a["order_alarm"].get<bool>() ? "  ALARM: the order of the arms matters" : "")
              << '\n';
  }
  for (const json& t : a.at("tiers")) {
    char text[160];
    std::snprintf(text,
                  sizeof text,
                  "tier %-28s x%.3f  %s",
                  t["id"].get<std::string>().c_str(),
                  t["median_ratio"].get<double>(),
                  t["guard"].is_null() ? "" : t["guard"].get<std::string>().c_str());
    std::cout << text << '\n';
  }
  std::cout << "record " << record_id(record) << " in " << path << '\n';
}

// The engine and window lanes: rounds of fresh processes of the whole engine, one switch apart.
int run_engine(const PlanFlags& flags, const EngineRounds& options, const std::string& json_path) {
  const OpInfo& op = op_of(flags.op, flags.backend);
  if (flags.b == "stock" || op.find(flags.b) < 0)
    throw UserError("--b " + flags.b + ": op " + op.name + " has no such variant");
  if (flags.a != "stock") throw UserError("--a " + flags.a + ": this lane compares with stock");
  StackPlan plan;
  plan.members = {{op.name, flags.b}};
  plan.backend = flags.backend;
  plan.lane = flags.lane;
  plan.numerics = flags.numerics.empty() ? "fast" : flags.numerics;
  plan.threads = flags.threads;
  plan.bar = flags.bar;
  plan.model = model_json(options.model);
  std::vector<std::string> tiers = flags.tiers;
  if (tiers.empty())
    tiers = flags.lane == "engine" ? std::vector<std::string>{"tiny", "read_128"}
                                   : std::vector<std::string>{"window_512"};
  for (const std::string& id : tiers) {
    const EngineTier& tier = engine_tier(id);
    if ((tier.endpoint == "window") != (flags.lane == "window"))
      throw UserError("tier " + id + " is not of lane " + flags.lane);
    plan.tiers.push_back({id, tier.endpoint, 1.0 / static_cast<double>(tiers.size()), true});
  }
  plan.rounds = flags.pairs;
  if (flags.pairs < 8 || rounds_for(2, flags.pairs) != flags.pairs || flags.pairs > 60)
    throw UserError("--pairs " + std::to_string(flags.pairs) + ": an even number from 8 to 60");
  const ParityGate gate =
      run_parity_gate(op,
                      flags.b,
                      flags.backend,
                      results_folder(options.out, device_of(flags.backend).name, options.scratch));
  if (!gate.passed())
    throw CheckError("parity of " + op.name + "/" + flags.b + " failed: REJECT, nothing is timed");
  const json record = *run_engine_rounds(plan, options);
  write_json(json_path, canonical_json(record));
  if (json_path != "-")
    std::cout << (options.scratch ? "SCRATCH, not citable. " : "") << stack_sentence(record)
              << "\nrecord " << record_id(record) << '\n';
  const std::string word = record.at("verdict").at("word");
  return static_cast<int>(word == "INVALID" || word == "REJECT" ? Exit::kCheckFailed : Exit::kGood);
}

int run(int argc, char** argv) {
  CommandLine app(
      "Paired A/B of one variant against stock: parity first, then balanced random pairs of fresh "
      "processes.",
      "assay ab",
      "assay ab --op gemv_quant --b avx2 --scratch");
  std::string plan_path;
  std::string json_path;
  std::string peer_path;
  std::string out = "results";
  std::string model;
  PlanFlags flags;
  bool scratch = false;
  app.add_option("--plan",
                 plan_path,
                 "plan file (assay plan writes one); excludes the flags that make a plan");
  add_plan_flags(app, flags);
  app.add_flag(
      "--scratch", scratch, "allow a dirty tree; the record is watermarked and cannot be cited");
  app.add_option("--peer",
                 peer_path,
                 "JSON of the best outside peer at the same shape; default: none, with the reason");
  app.add_option("--model", model, "lanes window and engine: the model; default: the shipped one");
  app.add_option("--out", out, "results folder");
  app.add_option("--json", json_path, "write the record to PATH, or to stdout for -");
  app.parse(argc, argv);

  if (plan_path.empty() == flags.op.empty())
    throw UserError("give either --plan P.json or --op OP --b VARIANT");
  if (plan_path.empty() && (flags.lane == "engine" || flags.lane == "window")) {
    require_clean(scratch, flags.backend);
    if (model.empty()) model = shipped_model();
    if (!std::filesystem::is_regular_file(model))
      throw InputError("--model '" + model + "': no such file");
    return run_engine(flags, {model, out, scratch, 0.0}, json_path);
  }
  const Plan plan = plan_path.empty() ? plan_from_flags(flags)
                                      : plan_from_json(parse_json_file(plan_path), plan_path);
  require_clean(scratch, plan.backend);
  const OpInfo& op = op_of(plan.op, plan.backend);
  check_plan_against(plan, op);
  const ParityGate gate = run_parity_gate(
      op, plan.b, plan.backend, results_folder(out, device_of(plan.backend).name, scratch));
  std::string path;
  const json record = run_sitting(plan, op, gate, {out, scratch, peer_path, std::nullopt}, path);
  write_json(json_path, canonical_json(record));
  if (json_path != "-")
    print_answer(record, path, plan.protocol == "abg4" ? measured_abg4(out) : json());
  const json& analysis = record.at("analysis");
  if (analysis.contains("injected"))
    return static_cast<int>(analysis["injected"].at("contained").get<bool>() ? Exit::kGood
                                                                             : Exit::kCheckFailed);
  const std::string word = record.at("verdict").at("word");
  return static_cast<int>(word == "INVALID" || word == "REJECT" ? Exit::kCheckFailed : Exit::kGood);
}

}  // namespace

extern const Command command_ab;
const Command command_ab{"ab", "lab", "paired A/B of a variant, with an exact interval", run};

}  // namespace assay
