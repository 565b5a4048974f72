// assay verify: recomputes every stored record.
#include <filesystem>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/verify.h"
#include "engine/main/command.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"
#include "parity/parity_record.h"

namespace assay {
namespace {

int run(int argc, char** argv) {
  CLI::App app(
      "Recompute stored records: schema, hashes, analysis and verdict from plan and runs, bit for "
      "bit.",
      "assay verify");
  house_style(app, "assay verify results");
  std::vector<std::string> paths;
  std::string json_path;
  app.add_option("RECORDS", paths, "record files (.jsonl) or folders of them")->required();
  app.add_option("--json", json_path, "write the outcome as JSON to PATH, or to stdout for -");
  parse_command_line(app, argc, argv);

  std::vector<std::string> files;
  for (const auto& path : paths) {
    if (std::filesystem::is_directory(path)) {
      const auto found = record_files(path);
      files.insert(files.end(), found.begin(), found.end());
    } else {
      files.push_back(path);
    }
  }
  const RecordJudge judge = [](const nlohmann::json& record) {
    return record.at("schema") == "assay-parity" ? parity_record_faults(record)
                                                 : std::vector<std::string>{};
  };
  nlohmann::json records = nlohmann::json::array();
  int bad = 0;
  std::string refused;
  for (const auto& file : files) {
    try {
      for (const auto& r : verify_records(read_file(file), file, judge)) {
        records.push_back({{"file", file},
                           {"line", r.line},
                           {"schema", r.schema},
                           {"id", r.id},
                           {"subject", r.subject},
                           {"scratch", r.scratch},
                           {"faults", r.faults}});
        bad += r.faults.empty() ? 0 : 1;
        if (json_path != "-") {
          std::cout << (r.faults.empty() ? "ok    " : "FAULT ") << r.id << "  " << r.subject
                    << (r.scratch ? "  (scratch, not citable)" : "") << '\n';
        }
        for (const auto& fault : r.faults)
          std::cerr << file << ": line " << r.line << ": " << fault << '\n';
      }
    } catch (const InputError& e) {
      // The other files are still worth an answer; the exit code says that one was refused.
      if (refused.empty()) refused = e.what();
      std::cerr << "assay verify: " << e.what() << '\n';
    }
  }
  write_json(json_path,
             nlohmann::json{
                 {"schema", "assay-verify"},
                 {"schema_version", 1},
                 {"files", files.size()},
                 {"records", records},
                 {"faulty", bad},
                 {"refused", refused.empty() ? nlohmann::json(nullptr) : nlohmann::json(refused)}}
                 .dump());
  if (json_path != "-")
    std::cout << records.size() << " records in " << files.size() << " files, " << bad
              << " faulty\n";
  if (!refused.empty()) return static_cast<int>(Exit::kInputRefused);
  return static_cast<int>(bad == 0 ? Exit::kGood : Exit::kCheckFailed);
}

}  // namespace

extern const Command command_verify;
const Command command_verify{"verify", "lab", "recompute stored records bit for bit", run};

}  // namespace assay
