// assay report: Markdown pages and plots of stored A/B records, from the records alone. A record that `assay verify` would
// fault is named and nothing is drawn: a plot of a touched record would lend it an air of truth.
#include <filesystem>
#include <iostream>

#include <nlohmann/json.hpp>

#include "bench/analysis.h"
#include "bench/stack.h"
#include "bench/verify.h"
#include "engine/main/command.h"
#include "engine/main/plot_runner.h"
#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

// What the script needs beside the records: where each lies, and what only this program can say about it.
json listed_records(const std::vector<std::string>& files) {
  json out = json::array();
  for (const std::string& file : files) {
    const std::string text = read_file(file);
    const auto verified = verify_records(text, file);
    for (const VerifiedRecord& v : verified) {
      if (!v.faults.empty())
        throw InputError(file + ": line " + std::to_string(v.line) + ": record " + v.id + ": " +
                         v.faults.front());
    }
    const auto records = parse_records(text, file);
    for (std::size_t i = 0; i < records.size(); ++i) {
      const json& r = records[i];
      json row{{"file", file}, {"line", verified[i].line}, {"id", verified[i].id}};
      if (r.at("schema") == "abg-result") {
        row["sentence"] = verdict_sentence(r);
        row["sources"] = verified[i].sources;
      }
      if (r.at("schema") == "assay-stack") {
        row["sentence"] = stack_sentence(r);
        row["sources"] = verified[i].sources;
      }
      out.push_back(row);
    }
  }
  return out;
}

int run(int argc, char** argv) {
  CommandLine app(
      "Pages and plots of stored A/B records: forest, slots, pairs, A/A null, roofline. Winners "
      "and losers alike; a record that does not verify is refused by name.",
      "assay report",
      "assay report results/amd-epyc --out build/report");
  std::vector<std::string> paths;
  std::string out;
  std::string json_path;
  bool all = false;
  app.add_option("RECORDS", paths, "record files (.jsonl) or folders of them").required();
  app.add_option("--out", out, "folder for index.md, one page a comparison, and PNG").required();
  app.add_flag("--screenings", all, "pages for screenings too, which make no claim");
  app.add_option("--json", json_path, "write the list of records to PATH, or to stdout for -");
  app.parse(argc, argv);
  std::vector<std::string> files;
  for (const auto& path : paths) {
    if (!std::filesystem::exists(path)) throw UserError(path + ": no such file or folder");
    if (std::filesystem::is_directory(path)) {
      const auto found = record_files(path);
      files.insert(files.end(), found.begin(), found.end());
    } else {
      files.push_back(path);
    }
  }
  const json document{{"schema", "assay-report"},
                      {"schema_version", 1},
                      {"build", build_json()},
                      {"screenings", all},
                      {"records", listed_records(files)}};
  std::filesystem::create_directories(out);
  const std::string list = out + "/report.json";
  write_file_atomic(list, document.dump(1) + "\n");
  run_plot_script("plot_ab.py", {list, out});
  write_json(json_path, document.dump());
  if (json_path != "-") std::cout << out << "/index.md\n";
  return 0;
}

}  // namespace

extern const Command command_report;
const Command command_report{"report", "lab", "pages and plots of stored A/B records", run};

}  // namespace assay
