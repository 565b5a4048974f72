// assay calibrate: how often the harness is right, on a device whose truth is known. The whole table takes minutes; CI runs a
// share of it (bench/synthetic_test.cpp).
#include <cstdio>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "bench/calibration.h"
#include "engine/main/ab_gates.h"
#include "engine/main/command.h"
#include "kernels/base/command_line.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

double percent(const json& cell, const char* key) {
  return 100.0 * cell.at(key).get<double>() / cell.at("repetitions").get<double>();
}

void print_table(const json& record) {
  std::printf("%-14s %-20s %6s %9s %11s %7s %12s %7s\n",
              "cells",
              "noise",
              "pairs",
              "covered",
              "different",
              "wins",
              "percentile",
              "BCa");
  for (const char* key : {"coverage", "abg4", "conservative", "aa", "power"}) {
    for (const json& c : record.at(key)) {
      std::printf("%-14s %-20s %6d %7.1f %% %9.1f %% %5.1f %% %10.1f %% %5.1f %%\n",
                  key,
                  c.at("scenario").get<std::string>().c_str(),
                  c.at("pairs").get<int>(),
                  percent(c, "covered"),
                  percent(c, "different"),
                  percent(c, "wins"),
                  percent(c, "covered_percentile"),
                  percent(c, "covered_bca"));
    }
  }
  const json& n = record.at("null_campaigns");
  std::printf("%d of %d campaigns of %d no-ops ended with a claim\n",
              n.at("with_claim").get<int>(),
              n.at("campaigns").get<int>(),
              n.at("variants").get<int>());
}

int run(int argc, char** argv) {
  CommandLine app(
      "The harness's own test: coverage, false calls and power on a synthetic device of known "
      "effects, whole sittings each. Fails when a mark is missed.",
      "assay calibrate",
      "assay calibrate --repetitions 4000");
  int repetitions = 4000;
  std::uint64_t seed = 1;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::string out = "results";
  std::string json_path;
  bool scratch = false;
  app.add_option("--repetitions", repetitions, "of a cell; equal arms and campaigns at most 1,000")
      .show_default();
  app.add_option("--rng-seed", seed, "seed of the noise").show_default();
  app.add_option("--threads", threads, "cells at a time").show_default();
  app.add_option("--out", out, "results folder").show_default();
  app.add_flag("--scratch", scratch, "allow a dirty tree; the record is kept apart");
  app.add_option("--json", json_path, "write the record to PATH, or to stdout for -");
  app.parse(argc, argv);
  if (repetitions < 3 || repetitions > 100000)
    throw UserError("--repetitions " + std::to_string(repetitions) + ": 3 to 100000");
  if (threads < 1 || threads > 256) throw UserError("--threads: 1 to 256");
  require_clean(scratch);
  Progress progress("calibrate", 1000);
  json record =
      calibration_table(repetitions, seed, threads, [&](std::size_t done, std::size_t all) {
        progress.update(done * 1000 / all);
      });
  const std::string path = results_folder(out, host_device().name, scratch) + "/calibration.jsonl";
  append_record(path, record);
  write_json(json_path, canonical_json(record));
  const auto misses = calibration_misses(record);
  if (json_path != "-") {
    print_table(record);
    std::cout << "record " << record_id(record) << " in " << path << '\n';
  }
  for (const auto& miss : misses) std::cerr << "assay calibrate: " << miss << '\n';
  return static_cast<int>(misses.empty() ? Exit::kGood : Exit::kCheckFailed);
}

}  // namespace

extern const Command command_calibrate;
const Command command_calibrate{
    "calibrate", "lab", "how often the harness is right, on known effects", run};

}  // namespace assay
