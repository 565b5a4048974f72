// assay ab: one paired comparison, from plan to record.
#include <cmath>
#include <iostream>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/analysis.h"
#include "bench/process.h"
#include "engine/main/ab_gates.h"
#include "engine/main/command.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

void print_answer(const json& record, const std::string& path) {
  const json& a = record.at("analysis");
  const json& plan = record.at("plan").at("body");
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
    if (plan.at("protocol") == "abg4")
      std::cout << "abg4: median of four pairs, the source protocol's rule.\n";
    std::cout << "legacy bootstrap  [" << percent(b["percentile"][0]) << ", "
              << percent(b["percentile"][1]) << "]  (" << coverage << ")\n";
  }
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
  app.add_option("--out", out, "results folder");
  app.add_option("--json", json_path, "write the record to PATH, or to stdout for -");
  app.parse(argc, argv);

  if (plan_path.empty() == flags.op.empty())
    throw UserError("give either --plan P.json or --op OP --b VARIANT");
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
  if (json_path != "-") print_answer(record, path);
  const std::string word = record.at("verdict").at("word");
  return static_cast<int>(word == "INVALID" || word == "REJECT" ? Exit::kCheckFailed : Exit::kGood);
}

}  // namespace

extern const Command command_ab;
const Command command_ab{"ab", "lab", "paired A/B of a variant, with an exact interval", run};

}  // namespace assay
