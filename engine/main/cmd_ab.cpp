// assay ab: one paired comparison, from plan to record.
#include <cmath>
#include <filesystem>
#include <iostream>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/analysis.h"
#include "bench/ledger.h"
#include "bench/process.h"
#include "bench/stack.h"
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
  const json& h = record.at("harness");
  std::printf("harness           %.2f %% of %.1f s wall",
              h.at("orchestration_share").get<double>() * 100.0,
              h.at("wall_s").get<double>());
  if (!h.at("clock_us_a_block").is_null())
    std::printf(", %.2f us a block inside the clock", h["clock_us_a_block"].get<double>());
  std::cout << "\nrecord " << record_id(record) << " in " << path << '\n';
}

// The engine and window lanes: rounds of fresh processes of the whole engine, one switch apart.
int run_rounds(const StackPlan& plan, const EngineRounds& options, const std::string& json_path) {
  const std::string card = device_of(plan.backend).name;
  for (const auto& [name, variant] : plan.members) {
    const ParityGate gate = run_parity_gate(op_of(name, plan.backend),
                                            variant,
                                            plan.backend,
                                            results_folder(options.out, card, options.scratch));
    if (gate.passed()) continue;
    for (LedgerLine& line : ledger_lines(plan, card, "refused")) {
      line.verdict = "parity of " + name + "/" + variant + " failed";
      append_ledger(ledger_path(options.out, card, plan.backend, options.scratch), line);
    }
    throw CheckError("parity of " + name + "/" + variant + " failed: REJECT, nothing is timed");
  }
  const json record = *run_engine_rounds(plan, options);
  write_json(json_path, canonical_json(record));
  if (json_path != "-")
    std::cout << (options.scratch ? "SCRATCH, not citable. " : "") << stack_sentence(record)
              << "\nrecord " << record_id(record) << '\n';
  const std::string word = record.at("verdict").at("word");
  return static_cast<int>(word == "INVALID" || word == "REJECT" ? Exit::kCheckFailed : Exit::kGood);
}

// What is wrong with a plan read from a file is that file's fault.
template <class F>
decltype(auto) of_file(const std::string& path, F&& body) {
  try {
    return body();
  } catch (const UserError& e) {
    if (path.empty()) throw;
    throw InputError(path + ": " + e.what());
  }
}

bool is_plan_of_rounds(const json& document, const std::string& path) {
  const json schema = document.is_object() ? document.value("schema", json()) : json();
  if (schema != "assay-stack-plan" && schema != "assay-plan")
    throw InputError(path + ": /schema: neither assay-plan nor assay-stack-plan");
  return schema == "assay-stack-plan";
}

StackPlan rounds_from_file(const json& document,
                           const std::string& path,
                           const std::string& model) {
  StackPlan plan = read_stack_plan(document, path);
  of_file(path, [&] {
    for (const auto& [name, variant] : plan.members) {
      if (variant == "stock" || op_of(name, plan.backend).find(variant) < 0)
        throw UserError("members/" + name + ": op " + name + " has no variant " + variant);
    }
  });
  if (plan.model != model_json(model))
    throw InputError("--model " + model + ": not the model of " + path + ", which has " +
                     plan.model.at("file_bytes").dump() + " bytes and head_sha256 " +
                     plan.model.at("head_sha256").get<std::string>().substr(0, 16));
  return plan;
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
  const json document = plan_path.empty() ? json() : parse_json_file(plan_path);
  const bool rounds = plan_path.empty() ? flags.lane == "engine" || flags.lane == "window"
                                        : is_plan_of_rounds(document, plan_path);
  if (rounds) {
    if (model.empty()) model = shipped_model();
    if (!std::filesystem::is_regular_file(model))
      throw InputError("--model '" + model + "': no such file");
    const StackPlan plan = plan_path.empty() ? rounds_from_flags(flags, model)
                                             : rounds_from_file(document, plan_path, model);
    require_clean(scratch, plan.backend);
    return run_rounds(plan, {model, out, scratch, 0.0}, json_path);
  }
  const Plan plan =
      plan_path.empty() ? plan_from_flags(flags) : plan_from_json(document, plan_path);
  require_clean(scratch, plan.backend);
  const OpInfo& op = of_file(plan_path, [&]() -> const OpInfo& {
    const OpInfo& found = op_of(plan.op, plan.backend);
    check_plan_against(plan, found);
    return found;
  });
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
