// assay verify: recomputes every stored record.
#include <filesystem>
#include <iostream>
#include <map>

#include <nlohmann/json.hpp>

#include "bench/load_record.h"
#include "bench/verify.h"
#include "engine/main/command.h"
#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/proven.h"
#include "kernels/base/record.h"
#include "parity/parity_record.h"

namespace assay {
namespace {

using nlohmann::json;

class Verifier {
 public:
  explicit Verifier(bool print) : print_(print) {}

  void records_of(const std::string& file) {
    const RecordJudge judge = [&](const json& record) {
      json kept = record;
      kept.erase("runs");
      by_id_[record.value("record_sha256", "")] = std::move(kept);
      if (record.at("schema") == "assay-daemon-load") return load_record_faults(record);
      return record.at("schema") == "assay-parity" ? parity_record_faults(record)
                                                   : std::vector<std::string>{};
    };
    for (const auto& r : verify_records(read_file(file), file, judge)) {
      note(file, "line " + std::to_string(r.line), r);
      listed_.push_back({{"file", file},
                         {"line", r.line},
                         {"schema", r.schema},
                         {"id", r.id},
                         {"subject", r.subject},
                         {"scratch", r.scratch},
                         {"sources", r.sources.empty() ? json(nullptr) : json(r.sources)},
                         {"seconds", r.seconds},
                         {"faults", r.faults}});
      ++records_;
    }
  }

  // After all records: a set is judged by those that it names.
  void proven_set(const std::string& file) {
    const ProvenSet set = parse_proven(read_file(file), file);
    VerifiedRecord v;
    v.id = "proven set";
    v.subject = set.card + " " + set.backend;
    v.scratch = set.scratch;
    v.faults = proven_faults(set, by_id_);
    for (const auto& [op, lanes] : set.ops) {
      for (const auto& [lane, e] : lanes) {
        if (source_digest(op, e.variant) == e.source_digest) continue;
        v.sources += (v.sources.empty() ? "stale: " : ", ") + op + "=" + e.variant;
      }
    }
    if (v.sources.empty()) v.sources = "current";
    note(file, "proven set", v);
    listed_.push_back({{"file", file},
                       {"schema", "assay-proven"},
                       {"subject", v.subject},
                       {"scratch", v.scratch},
                       {"sources", v.sources},
                       {"faults", v.faults}});
  }

  // The other files are still worth an answer; the exit code says that one was refused.
  void refuse(const std::string& why) {
    if (refused_.empty()) refused_ = why;
    std::cerr << "assay verify: " << why << '\n';
  }

  json document(std::size_t files) const {
    return {{"schema", "assay-verify"},
            {"schema_version", 1},
            {"files", files},
            {"records", listed_},
            {"faulty", faulty_},
            {"refused", refused_.empty() ? json(nullptr) : json(refused_)}};
  }
  int records() const { return records_; }
  int faulty() const { return faulty_; }
  bool refused() const { return !refused_.empty(); }

 private:
  void note(const std::string& file, const std::string& where, const VerifiedRecord& r) {
    faulty_ += r.faults.empty() ? 0 : 1;
    if (print_) {
      std::cout << (r.faults.empty() ? "ok    " : "FAULT ") << r.id << "  " << r.subject
                << (r.sources.starts_with("stale") ? "  (" + r.sources + ")" : "")
                << (r.scratch ? "  (scratch, not citable)" : "") << '\n';
    }
    for (const auto& fault : r.faults) std::cerr << file << ": " << where << ": " << fault << '\n';
  }

  bool print_;
  json listed_ = json::array();
  std::map<std::string, json> by_id_;
  int records_ = 0;
  int faulty_ = 0;
  std::string refused_;
};

int run(int argc, char** argv) {
  CommandLine app(
      "Recompute stored records: schema, hashes, analysis and verdict from plan and runs, bit for "
      "bit; proven sets are held to the records that they name.",
      "assay verify",
      "assay verify results");
  std::vector<std::string> paths;
  std::string json_path;
  app.add_option("RECORDS", paths, "record files (.jsonl), proven sets (.json) or folders of them")
      .required();
  app.add_option("--json", json_path, "write the outcome as JSON to PATH, or to stdout for -");
  app.parse(argc, argv);

  std::vector<std::string> files;
  std::vector<std::string> sets;
  for (const auto& path : paths) {
    if (std::filesystem::is_directory(path)) {
      const auto found = record_files(path);
      files.insert(files.end(), found.begin(), found.end());
      const auto proven = proven_files(path);
      sets.insert(sets.end(), proven.begin(), proven.end());
    } else {
      (path.ends_with(".json") ? sets : files).push_back(path);
    }
  }
  Verifier verifier(json_path != "-");
  const auto guarded = [&](auto&& body) {
    try {
      body();
    } catch (const InputError& e) {
      verifier.refuse(e.what());
    }
  };
  for (const auto& file : files) guarded([&] { verifier.records_of(file); });
  for (const auto& file : sets) guarded([&] { verifier.proven_set(file); });
  write_json(json_path, verifier.document(files.size() + sets.size()).dump());
  if (json_path != "-") {
    std::cout << verifier.records() << " records and " << sets.size() << " proven sets in "
              << files.size() + sets.size() << " files, " << verifier.faulty() << " faulty\n";
  }
  if (verifier.refused()) return static_cast<int>(Exit::kInputRefused);
  return static_cast<int>(verifier.faulty() == 0 ? Exit::kGood : Exit::kCheckFailed);
}

}  // namespace

extern const Command command_verify;
const Command command_verify{"verify", "lab", "recompute stored records bit for bit", run};

}  // namespace assay
