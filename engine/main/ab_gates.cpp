#include "engine/main/ab_gates.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/analysis.h"
#include "bench/child.h"
#include "kernels/base/build_id.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/measure.h"
#include "kernels/base/program.h"
#include "kernels/base/proven.h"
#include "kernels/base/record.h"
#include "parity/parity.h"
#include "parity/parity_record.h"

namespace assay {
namespace {

using nlohmann::json;

void require_variant(const OpInfo& op, const std::string& name, const char* flag) {
  if (op.find(name) >= 0) return;
  std::string names;
  for (const auto& v : op.variants) names += (names.empty() ? "" : ", ") + v.name;
  throw UserError(std::string(flag) + " " + name + ": op " + op.name + " has " + names);
}

}  // namespace

void add_plan_flags(CLI::App& app, PlanFlags& f) {
  app.add_option("--op", f.op, "op (assay catalog lists them)");
  app.add_option("--b", f.b, "arm B: the variant on trial");
  app.add_option("--a", f.a, "arm A")->capture_default_str();
  app.add_option("--lane", f.lane, "micro (window and engine: GPU lanes)")->capture_default_str();
  app.add_option(
         "--tiers", f.tiers, "cases to time, e.g. --tiers a,b; default: the op's typical ones")
      ->delimiter(',');
  app.add_option("--numerics", f.numerics, "restrict default tiers to exact or fast");
  app.add_option("--pairs", f.pairs, "A/B pairs, even, 8..60; 4 with --protocol abg4")
      ->capture_default_str();
  app.add_option("--protocol", f.protocol, "signed-rank or abg4 (four pairs, bootstrap; no claim)")
      ->capture_default_str();
  app.add_option("--threads", f.threads, "host threads of each arm")->capture_default_str();
  app.add_option("--blocks", f.blocks, "timed blocks a start")->capture_default_str();
  app.add_option("--bar", f.bar, "smallest speed-up of interest")->capture_default_str();
  app.add_flag("--underpowered", f.underpowered, "start although the planned MDE is above the bar");
}

Plan plan_from_flags(const PlanFlags& f) {
  const OpInfo& op = find_op(f.op);
  if (f.b.empty()) throw UserError("--b: name the variant on trial");
  require_variant(op, f.a, "--a");
  require_variant(op, f.b, "--b");
  if (f.lane != "micro" && f.lane != "window" && f.lane != "engine")
    throw UserError("--lane " + f.lane + ": micro, window or engine");
  if (f.protocol != "signed-rank" && f.protocol != "abg4")
    throw UserError("--protocol " + f.protocol + ": signed-rank or abg4");
  if (!f.numerics.empty() && f.numerics != "exact" && f.numerics != "fast")
    throw UserError("--numerics " + f.numerics + ": exact or fast");
  Plan p;
  p.op = op.name;
  p.a = f.a;
  p.b = f.b;
  p.family = op.name;
  p.lane = f.lane;
  p.protocol = f.protocol;
  p.pairs = f.protocol == "abg4" ? 4 : f.pairs;
  p.stage = p.pairs < 8 ? "smoke" : "confirm";
  p.threads = f.threads;
  p.blocks = f.blocks;
  p.bar = f.bar;
  p.underpowered = f.underpowered;
  if (f.tiers.empty()) {
    p.tiers = default_tiers(op, p.a, p.b, f.numerics);
  } else {
    for (const auto& t : f.tiers)
      p.tiers.push_back({t, "micro", 1.0 / static_cast<double>(f.tiers.size()), true});
  }
  check_plan(p);
  check_plan_against(p, op);
  return p;
}

void check_plan_against(const Plan& plan, const OpInfo& op) {
  require_variant(op, plan.a, "plan a");
  require_variant(op, plan.b, "plan b");
  for (const PlanTier& t : plan.tiers) {
    const auto problem =
        op.make_problem == nullptr ? nullptr : op.make_problem(find_case(op, t.id), 0);
    if (problem == nullptr) throw UserError("op " + op.name + " has no cases of its own to time");
    for (const std::string& v : {plan.a, plan.b}) {
      if (const Why why = problem->ineligible(op.find(v), host_device())) {
        throw UserError("tier " + t.id + ": " + v + " is not eligible: " + why);
      }
    }
  }
  if (plan.lane != "micro")
    throw HardwareError("lane " + plan.lane +
                        " needs a GPU build; this one has the micro lane for host ops");
  if (plan.backend != "host") throw HardwareError("backend " + plan.backend + " needs a GPU build");
}

json parse_json_file(const std::string& path) {
  const std::string text = read_file(path);
  try {
    return json::parse(text);
  } catch (const json::parse_error& e) {
    throw InputError(path + ": byte " + std::to_string(e.byte > 0 ? e.byte - 1 : 0) + ": not JSON");
  }
}

ParityGate run_parity_gate(const OpInfo& op, const std::string& variant) {
  ParityOptions options;
  options.device = host_device();
  options.variant = variant;
  ParityGate gate;
  const ParityResult result =
      run_parity(op, options, [&](const std::string& fault) { gate.faults.push_back(fault); });
  double worst = 0.0;
  std::uint64_t ulp = 0;
  std::size_t compared = 0;
  std::string exactness = "none";
  for (const VariantResult& v : result.variants) {
    if (v.info.name != variant) continue;
    exactness = to_string(v.info.exactness);
    if (v.count(CaseOutcome::kPass) + v.count(CaseOutcome::kFail) > 0)
      gate.record = parity_record(op, options, v);
    for (const CaseResult& c : v.cases) {
      if (c.outcome == CaseOutcome::kSkip) continue;
      ++compared;
      worst = worse(worst, c.rel_l2);
      ulp = std::max(ulp, c.max_ulp);
    }
  }
  const bool pass = result.verdict() == Exit::kGood && compared > 0;
  const bool finite = worst - worst == 0.0;
  gate.summary = {{"record_sha256", ""},
                  {"outcome", pass ? "pass" : "fail"},
                  {"class", exactness},
                  {"worst_rel_l2", finite ? json(worst) : json(nullptr)},
                  {"max_ulp", ulp},
                  {"cases", compared},
                  {"exe_sha256", executable_sha256()}};
  if (compared == 0) gate.faults.push_back("no case was compared");
  return gate;
}

void store_parity(ParityGate& gate, const std::string& folder) {
  if (gate.record.is_null()) return;
  append_record(folder + "/parity_" + gate.record.at("op").get<std::string>() + ".jsonl",
                gate.record);
  gate.summary["record_sha256"] = gate.record.at("record_sha256");
}

AbInputs gather_inputs(const Plan& plan,
                       const ParityGate& gate,
                       const std::string& out,
                       bool scratch,
                       const std::string& peer_path) {
  AbInputs in;
  in.parity = gate.summary;
  for (const auto& f : gate.faults) ASSAY_LOG(warn, "parity: {}", f);
  if (gate.summary.at("outcome") != "pass")
    throw CheckError("parity of " + plan.op + "/" + plan.b + " failed: nothing is timed");
  in.machine = machine_record();
  in.source_a = source_json(plan.op, plan.a);
  in.source_b = source_json(plan.op, plan.b);
  in.scratch = scratch;
  in.peer = peer_path.empty()
                ? json{{"name", nullptr},
                       {"reason",
                        "no outside implementation of this op and format was run at this sitting"}}
                : parse_json_file(peer_path);
  // The pool is what earlier sittings of the same card, lane, op, tiers and thread count measured of the noise itself.
  const json like{{"machine", in.machine}, {"plan", plan_json(plan)}};
  std::vector<std::string> folders{out + "/" + card_slug(in.machine.at("card"))};
  if (scratch) folders.push_back(out + "/scratch");
  for (const auto& folder : folders) {
    for (const auto& file : record_files(folder)) {
      try {
        for (const json& r : read_records(file)) {
          if (r.at("schema") != "abg-result" || r.at("verdict").at("word") == "INVALID") continue;
          const auto d = aa_differences(r, like);
          if (d.empty()) continue;
          in.aa_pool.insert(in.aa_pool.end(), d.begin(), d.end());
          in.aa_pool_records.push_back(record_id(r));
        }
      } catch (const InputError& e) {
        ASSAY_LOG(warn, "A/A pool: {} (skipped)", e.what());
      }
    }
  }
  return in;
}

}  // namespace assay
