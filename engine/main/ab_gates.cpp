#include "engine/main/ab_gates.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iostream>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/analysis.h"
#include "bench/child.h"
#include "bench/cold.h"
#include "bench/ledger.h"
#include "bench/process.h"
#include "bench/timing_cases.h"
#include "bench/verify.h"
#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/log.h"
#include "kernels/base/program.h"
#include "kernels/base/proven.h"
#include "kernels/base/record.h"
#include "parity/parity.h"
#include "parity/parity_record.h"

extern char** environ;

namespace assay {
namespace {

using nlohmann::json;

void require_variant(const OpInfo& op, const std::string& name, const char* flag) {
  if (op.find(name) >= 0) return;
  std::string names;
  for (const auto& v : op.variants) names += (names.empty() ? "" : ", ") + v.name;
  throw UserError(std::string(flag) + " " + name + ": op " + op.name + " has " + names);
}

// The summary of a check that compared nothing.
json no_parity() {
  return {{"record_sha256", ""},
          {"outcome", "fail"},
          {"class", "none"},
          {"worst_rel_l2", nullptr},
          {"max_ulp", 0},
          {"cases", 0},
          {"exe_sha256", executable_sha256()}};
}

}  // namespace

void add_plan_flags(CommandLine& app, PlanFlags& f) {
  app.add_option("--op", f.op, "op (assay catalog lists them)");
  app.add_option("--b", f.b, "arm B: the variant on trial");
  app.add_option("--a", f.a, "arm A").show_default();
  app.add_option("--lane", f.lane, "micro, window or engine").show_default();
  app.add_option(
         "--tiers", f.tiers, "cases to time, e.g. --tiers a,b; default: the op's typical ones")
      .delimiter(',');
  app.add_option("--needles", f.needles, "lanes engine and window: needle checks, or none")
      .delimiter(',')
      .show_default();
  app.add_option("--numerics", f.numerics, "restrict default tiers to exact or fast");
  app.add_option("--pairs", f.pairs, "A/B pairs, even, 8..60; 4 with --protocol abg4")
      .show_default();
  app.add_option("--protocol", f.protocol, "signed-rank or abg4 (four pairs, bootstrap; no claim)")
      .show_default();
  app.add_option("--backend", f.backend, "host, cuda").show_default();
  app.add_option("--regime",
                 f.regime,
                 "hot, cold-rotate, cold-flush (host); default: hot on the host, else as met");
  app.add_option("--block-us", f.block_us, "least work in a timed block").show_default();
  app.add_option("--threads", f.threads, "host threads of each arm").show_default();
  app.add_option("--blocks", f.blocks, "timed blocks a start").show_default();
  app.add_option("--bar", f.bar, "smallest speed-up of interest").show_default();
  app.add_option(
      "--inject-slowdown",
      f.injected,
      "test of the harness: arm B runs --a and repeats this share of its calls, as 0.01");
  app.add_flag("--underpowered", f.underpowered, "start although the planned MDE is above the bar");
}

const OpInfo& op_of(const std::string& name, const std::string& backend) {
  if (backend != "host" && backend != "cuda")
    throw UserError("--backend '" + backend + "': valid are host, cuda");
  const OpInfo& op = find_op(name);
  return backend == "cuda" ? with_timing_cases(op) : op;
}

Plan plan_from_flags(const PlanFlags& flags) {
  PlanFlags f = flags;
  const OpInfo& op = op_of(f.op, f.backend);
  if (f.injected != 0.0 && f.b.empty()) f.b = f.a;
  if (f.b.empty()) throw UserError("--b: name the variant on trial");
  require_variant(op, f.a, "--a");
  require_variant(op, f.b, "--b");
  if (f.lane != "micro" && f.lane != "window" && f.lane != "engine")
    throw UserError("--lane " + f.lane + ": micro, window or engine");
  if (f.protocol != "signed-rank" && f.protocol != "abg4")
    throw UserError("--protocol " + f.protocol + ": signed-rank or abg4");
  if (!f.numerics.empty() && f.numerics != "exact" && f.numerics != "fast")
    throw UserError("--numerics " + f.numerics + ": exact or fast");
  if (!f.regime.empty() && f.regime != "hot" && f.regime != "cold-rotate" &&
      (f.regime != "cold-flush" || f.backend == "cuda"))
    throw UserError("--regime " + f.regime + ": hot, cold-rotate, or on the host cold-flush");
  Plan p;
  p.op = op.name;
  p.backend = f.backend;
  p.block_us = f.block_us;
  if (!f.regime.empty()) {
    p.regime = f.regime;
  } else if (f.backend == "cuda" && reads_memory(op) && !gpu::simulated()) {
    p.regime = "cold-rotate";
  }
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
  p.injected = f.injected;
  if (f.tiers.empty()) {
    p.tiers = default_tiers(op, p.a, p.b, f.numerics, device_of(f.backend));
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
      const auto& fields = problem->fields();
      const bool in_out = std::any_of(
          fields.begin(), fields.end(), [](const Field& f) { return f.dir == Dir::kInOut; });
      if (plan.injected > 0.0 && in_out) {
        throw UserError("tier " + t.id +
                        ": its calls change their own input, so none can be repeated");
      }
      if (const Why why = problem->ineligible(op.find(v), device_of(plan.backend))) {
        throw UserError("tier " + t.id + ": " + v + " is not eligible: " + why);
      }
    }
  }
  if (plan.lane != "micro")
    throw UserError("lane " + plan.lane +
                    ": a plan of cases is for the micro lane; `assay plan --lane " + plan.lane +
                    "` writes one of the whole engine");
  if (plan.regime == "hot" || plan.backend != "host") return;
  if (!reads_memory(op))
    throw UserError("regime " + plan.regime + ": op " + op.name +
                    " reads no weights or cache that could be cold");
  if (plan.regime != "cold-rotate" && plan.regime != "cold-flush")
    throw UserError("regime " + plan.regime + ": the host has hot, cold-rotate and cold-flush");
  if (plan.regime == "cold-flush" && plan.injected > 0.0)
    throw UserError("regime cold-flush: a group is one call, of which no share can be repeated");
}

json parse_json_file(const std::string& path) {
  const std::string text = read_file(path);
  try {
    return json::parse(text);
  } catch (const json::parse_error& e) {
    throw InputError(path + ": byte " + std::to_string(e.byte > 0 ? e.byte - 1 : 0) + ": not JSON");
  } catch (const json::out_of_range&) {
    throw InputError(path + ": a number is out of range");
  }
}

int serve_parity_gate(const std::string& op_name,
                      const std::string& variant,
                      const std::string& backend,
                      const std::string& record_path) {
  const OpInfo& op = find_op(op_name);
  ParityOptions options;
  options.device = device_of(backend);
  if (backend != "host") options.threads = {1};
  options.variant = variant;
  json faults = json::array();
  const ParityResult result =
      run_parity(op, options, [&](const std::string& fault) { faults.push_back(fault); });
  json summary = no_parity();
  for (const VariantResult& v : result.variants) {
    if (v.info.name != variant) continue;
    if (v.count(CaseOutcome::kPass) + v.count(CaseOutcome::kFail) == 0) continue;
    json record = parity_record(op, options, v);
    append_record(record_path, record);
    summary = parity_gate_of(record).summary;
  }
  if (summary.at("cases") == 0) faults.push_back("no case was compared");
  if (result.verdict() != Exit::kGood) summary["outcome"] = "fail";
  const bool pass = summary.at("outcome") == "pass";
  std::cout << json{{"summary", summary}, {"faults", faults}}.dump() << std::endl;
  return static_cast<int>(pass ? Exit::kGood : Exit::kCheckFailed);
}

ParityGate parity_gate_of(const json& record) {
  ParityGate gate;
  gate.summary = {{"record_sha256", record.at("record_sha256")},
                  {"outcome", record.at("outcome")},
                  {"class", record.at("class")},
                  {"worst_rel_l2", record.at("worst").at("rel_l2")},
                  {"max_ulp", record.at("worst").at("max_ulp")},
                  {"cases", record.at("totals").at("compared")},
                  {"exe_sha256", record.at("exe_sha256")}};
  return gate;
}

ParityGate run_parity_gate(const OpInfo& op,
                           const std::string& variant,
                           const std::string& backend,
                           const std::string& folder) {
  const std::string record_path = folder + "/parity_" + op.name + ".jsonl";
  std::vector<std::string> args{"assay",
                                "ab-parity",
                                "--op",
                                op.name,
                                "--variant",
                                variant,
                                "--backend",
                                backend,
                                "--record",
                                record_path};
  std::vector<char*> argv;
  for (auto& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(Exit::kCheckFailed, "parity: cannot open a pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; error == 0 && (n = ::read(ends[0], buffer, sizeof buffer)) != 0;) {
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR) break;
  }
  ::close(ends[0]);
  if (error != 0) throw Error(Exit::kCheckFailed, "parity: cannot start the check");
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  ParityGate gate;
  const json answer = json::parse(text, nullptr, false);
  if (answer.is_object() && answer.contains("summary") && WIFEXITED(status)) {
    gate.summary = answer["summary"];
    gate.faults = answer.at("faults").get<std::vector<std::string>>();
    return gate;
  }
  gate.faults.push_back(WIFSIGNALED(status)
                            ? "the parity run ended by signal " + std::to_string(WTERMSIG(status))
                            : "the parity run ended without an answer, exit " +
                                  std::to_string(WEXITSTATUS(status)));
  gate.summary = no_parity();
  return gate;
}

AaPool aa_pool(const Plan& plan, const std::string& out, bool scratch) {
  const DeviceInfo& device = device_of(plan.backend);
  const json like{{"machine", machine_json(device)}, {"plan", plan_json(plan)}};
  std::vector<std::string> folders{out + "/" + card_slug(device.name)};
  if (scratch) folders.push_back(out + "/scratch");
  AaPool pool;
  for (const auto& folder : folders) {
    for (const auto& file : record_files(folder)) {
      try {
        for (const json& r : read_records(file)) {
          if (r.at("schema") != "abg-result" || r.at("verdict").at("word") == "INVALID") continue;
          const auto d = aa_differences(r, like);
          if (d.empty()) continue;
          pool.d.insert(pool.d.end(), d.begin(), d.end());
          pool.records.push_back(record_id(r));
        }
      } catch (const InputError& e) {
        ASSAY_LOG(warn, "A/A pool: passed over {}", e.what());
      }
    }
  }
  return pool;
}

json measured_abg4(const std::string& out) {
  json newest;
  for (const auto& file : record_files(out)) {
    if (!file.ends_with("/calibration.jsonl")) continue;
    for (const json& r : read_records(file)) {
      if (newest.is_null() || newest.at("recorded_utc") < r.at("recorded_utc")) newest = r;
    }
  }
  if (newest.is_null()) return newest;
  json sum{{"covered", 0}, {"repetitions", 0}, {"record", record_id(newest)}};
  for (const json& cell : newest.at("abg4")) {
    for (const char* key : {"covered", "repetitions"})
      sum[key] = sum[key].get<int>() + cell.at(key).get<int>();
  }
  return sum;
}

void require_clean(bool scratch, const std::string& backend) {
  if (backend == "cuda" && gpu::simulated() && !scratch) {
    throw UserError("the CPU executor proves nothing about a card: use --scratch (not citable)");
  }
  if (build_id().dirty && !scratch) {
    throw UserError(
        "this build is of a tree with uncommitted changes: commit and rebuild, or use --scratch "
        "(not citable)");
  }
}

// The canary of every tier of a plan that is to be cold on the host. CheckError for one that is not: nothing is timed then.
static json coldness_of(const Plan& plan, const OpInfo& op) {
  if (plan.backend != "host" || plan.regime == "hot") return nullptr;
  json cold = json::object();
  for (const PlanTier& t : plan.tiers) {
    const json& c = cold[t.id] = measure_coldness(op, find_case(op, t.id), plan.regime);
    if (c.at("ratio").get<double>() <= kCanaryLimit) continue;
    throw CheckError("tier " + t.id + ": regime " + plan.regime +
                     " is not cold here: a plain read goes " + c.at("ratio").dump() +
                     " times as fast as memory");
  }
  return cold;
}

json run_sitting(const Plan& plan,
                 const OpInfo& op,
                 const ParityGate& gate,
                 const SittingOptions& options,
                 std::string& path) {
  const DeviceInfo& where = device_of(plan.backend);
  const std::string card = where.name;
  const std::string ledger = ledger_path(options.out, card, plan.backend, options.scratch);
  for (const auto& f : gate.faults) ASSAY_LOG(warn, "parity: {}", f);
  if (!gate.passed()) {
    LedgerLine line = ledger_line(plan, card, "refused");
    line.verdict = "parity failed";
    append_ledger(ledger, line);
    throw CheckError("parity of " + plan.op + "/" + plan.b + " failed: REJECT, nothing is timed");
  }
  AbInputs inputs;
  inputs.parity = gate.summary;
  inputs.machine = machine_record(where);
  inputs.source_a = source_json(plan.op, plan.a);
  inputs.source_b = source_json(plan.op, plan.b);
  inputs.scratch = options.scratch;
  inputs.cold = coldness_of(plan, op);
  inputs.peer =
      options.peer_path.empty()
          ? json{{"name", nullptr},
                 {"reason",
                  "no outside implementation of this op and format was run at this sitting"}}
          : parse_json_file(options.peer_path);
  if (const std::string fault = peer_fault(inputs.peer, plan); !fault.empty())
    throw InputError(options.peer_path + ": " + fault);
  const AaPool pool = options.pool ? *options.pool : aa_pool(plan, options.out, options.scratch);
  inputs.aa_pool = pool.d;
  inputs.aa_pool_records = pool.records;
  const PlannedPower power = planned_power(plan, inputs.aa_pool);
  if (power.known) {
    ASSAY_LOG(info,
              "planned MDE {:.2f} % at {} pairs (A/A sd {:.2f} %, {} pairs in the pool)",
              std::expm1(power.mde) * 100.0,
              plan.pairs,
              power.sd * 100.0,
              inputs.aa_pool.size());
  } else {
    ASSAY_LOG(info, "planned MDE unknown: no A/A pool for this card, op and tiers yet");
  }
  append_ledger(ledger, ledger_line(plan, card, "started"));
  Progress progress("ab " + plan.op + "/" + plan.b, 1000);
  inputs.progress = [&](std::size_t done, std::size_t total) {
    progress.update(done * 1000 / std::max<std::size_t>(total, 1));
  };
  const auto device = make_process_device(op, plan);
  json record = run_ab(plan, *device, inputs);
  path = results_folder(options.out, card, options.scratch) + "/ab_" + plan.op + "_" + plan.b +
         ".jsonl";
  append_record(path, record);
  LedgerLine line = ledger_line(plan, card, "finished");
  line.record = record.at("record_sha256");
  line.verdict = record.at("verdict").at("word");
  append_ledger(ledger, line);
  return record;
}

}  // namespace assay
