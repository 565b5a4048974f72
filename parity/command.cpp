// The command line of parity_<op>: judges the op's variants on its cases.
#include "parity/command.h"

#include <cstdio>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/log.h"
#include "kernels/base/op_info.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"
#include "parity/parity.h"
#include "parity/parity_record.h"

namespace assay {
namespace {

void list(const OpInfo& op, const DeviceInfo& device) {
  for (const auto& v : op.variants) {
    fmt::print("variant {:<24} {:<11} {:<9} {}\n",
               v.name,
               to_string(v.exactness),
               to_string(v.stage),
               v.summary);
  }
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    const auto problem = op.make_problem(i, 0);
    fmt::print("case    {:<24} {}\n", op.case_names[i], problem->shape_text());
    for (std::size_t v = 0; v < op.variants.size(); ++v) {
      if (const Why why = problem->ineligible(static_cast<int>(v), device)) {
        fmt::print("          not for {}: {}\n", op.variants[v].name, why);
      }
    }
  }
}

void print_table(const OpInfo& op, const ParityOptions& options, const ParityResult& result) {
  fmt::print("{} on {} ({}), threads {}\n",
             op.name,
             to_string(options.device.backend),
             options.device.name,
             fmt::join(options.threads, ","));
  fmt::print("{:<22} {:<11} {:>8} {:>7} {:>6}  {:>10} {:>10} {:>12} {:>10}  {}\n",
             "variant",
             "class",
             "compared",
             "skipped",
             "failed",
             "rel L2",
             "bound",
             "max ulp",
             "diff bytes",
             "verdict");
  for (const auto& v : result.variants) {
    double rel_l2 = 0.0;
    double bound = 0.0;
    std::uint64_t ulp = 0;
    std::uint64_t bytes = 0;
    std::map<std::string, std::size_t> reasons;
    for (const auto& c : v.cases) {
      if (c.outcome == CaseOutcome::kSkip) {
        ++reasons[c.skip_reason];
        continue;
      }
      if (!(c.rel_l2 <= rel_l2)) {
        rel_l2 = c.rel_l2;
        bound = c.error_bound;
      }
      ulp = std::max(ulp, c.max_ulp);
      bytes = std::max(bytes, c.mismatched_bytes);
    }
    const auto verdict = v.verdict();
    const std::string ulp_text = ulp == UINT64_MAX ? "NaN" : std::to_string(ulp);
    fmt::print("{:<22} {:<11} {:>8} {:>7} {:>6}  {:>10.3g} {:>10.3g} {:>12} {:>10}  {}\n",
               v.info.name,
               to_string(v.info.exactness),
               v.count(CaseOutcome::kPass) + v.count(CaseOutcome::kFail),
               v.count(CaseOutcome::kSkip),
               v.count(CaseOutcome::kFail),
               rel_l2,
               bound,
               ulp_text,
               bytes,
               verdict == Exit::kGood            ? "pass"
               : verdict == Exit::kNoHardware    ? "no hardware"
               : v.count(CaseOutcome::kFail) > 0 ? "FAIL"
                                                 : "FAIL: 0 cases compared");
    for (const auto& [reason, n] : reasons) fmt::print("    skipped {}: {}\n", n, reason);
    for (const auto& note : v.unchecked) fmt::print("    not checked: {}\n", note);
  }
}

int run(const char* op_name, const std::string& program, int argc, char** argv) {
  CommandLine app(std::string("Compare the variants of ") + op_name +
                      " with its reference and with stock, case by case.",
                  program,
                  program + " --variant stock --threads 1,4");
  std::string backend = "host";
  bool list_only = false;
  bool graph = false;
  std::string json_path;
  std::string record_path;
  ParityOptions options;
  app.add_option("--backend", backend, "host, cuda or simt").one_of({"host", "cuda", "simt"});
  app.add_flag(
      "--list", list_only, "variants and cases with what is not eligible, without running");
  app.add_option("--filter", options.filter, "only cases whose name this regular expression finds");
  app.add_option("--variant", options.variant, "only this variant");
  app.add_flag("--graph", graph, "run captured in a CUDA graph (with --backend cuda)");
  app.add_option("--rng-seed", options.rng_seed, "seed of all inputs; 0: each case's own");
  app.add_option("--threads", options.threads, "host thread counts, each 1..256").delimiter(',');
  app.add_option(
      "--json", json_path, "write the result as JSON; '-': stdout, instead of the table");
  app.add_option("--record", record_path, "append one parity record a variant to this .jsonl");
  app.parse(argc, argv);

  const OpInfo& op = find_op(op_name);
  if (!options.variant.empty() && op.find(options.variant) < 0) {
    std::string names;
    for (const auto& v : op.variants) names += (names.empty() ? "" : ", ") + v.name;
    throw UserError("--variant " + options.variant + ": " + op.name +
                    " has no such variant; valid are " + names);
  }
  if (backend != "host") {
    if (const Why why = gpu::unavailable())
      throw HardwareError("--backend " + backend + ": " + why);
    if (gpu::simulated() != (backend == "simt")) {
      throw HardwareError("--backend " + backend + ": this build runs CUDA sources " +
                          (gpu::simulated() ? "on the CPU executor only (--backend simt)"
                                            : "on a GPU only (--backend cuda)"));
    }
    options.threads = {1};
  } else if (graph) {
    throw UserError("--graph needs --backend cuda: the host has no graphs");
  }
  options.graph = graph;
  if (!record_path.empty() && backend == "simt") {
    throw UserError("--record with --backend simt: the CPU executor proves nothing about a card");
  }
  if (!record_path.empty() && !options.filter.empty()) {
    throw UserError("--record with --filter: a record speaks for every case; drop one of them");
  }
  options.device = backend == "host" ? host_device() : gpu::device();
  ASSAY_LOG(info, "{} {}", program, build_line());
  if (list_only) {
    if (op.make_problem == nullptr) throw UserError(op.name + " has no cases");
    list(op, options.device);
    return 0;
  }

  ParityResult result;
  {
    Progress progress(op.name, op.case_names.size());
    result = run_parity(
        op,
        options,
        [](const std::string& fault) { std::cerr << "FAIL " << fault << '\n'; },
        [&](std::size_t done, std::size_t) { progress.update(done); });
  }
  if (!record_path.empty()) {
    for (const auto& v : result.variants) {
      if (v.verdict() == Exit::kNoHardware) continue;  // nothing was judged
      nlohmann::json record = parity_record(op, options, v);
      append_record(record_path, record);
      ASSAY_LOG(info,
                "record {} {} {} {}",
                record_id(record),
                op.name,
                v.info.name,
                record.at("outcome").get<std::string>());
    }
  }
  if (!json_path.empty())
    write_json(json_path, canonical_json(parity_document(op, options, result)));
  if (json_path != "-") print_table(op, options, result);
  const Exit verdict = result.verdict();
  if (verdict == Exit::kCheckFailed) {
    std::size_t compared = 0;
    for (const auto& v : result.variants) compared += v.cases.size() - v.count(CaseOutcome::kSkip);
    if (compared == 0) std::cerr << program << ": FAIL: 0 cases compared\n";
  }
  return static_cast<int>(verdict);
}

}  // namespace

int parity_main(const char* op_name, int argc, char** argv) {
  const std::string program = std::string("parity_") + op_name;
  return run_program(program.c_str(), argc, argv, [&](int n, char** args) {
    return run(op_name, program, n, args);
  });
}

}  // namespace assay
