// assay catalog: every op and variant from the registry, with the newest proof; the knob pages of docs/knobs.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/main/command.h"
#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/op_info.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kParitySchema = "assay-parity";

// The newest passing parity record of a variant whose sources are the present ones, and the newest whatever they are.
struct Proof {
  std::string current;  // record id; empty: none
  std::string stale;    // record id of the newest passing record with other sources; empty: none
  std::string moved;    // which files differ from the stale record's
  // What a page names: it must not change with every edit of a source, so it does not say whether the proof is current.
  const std::string& newest() const { return current.empty() ? stale : current; }
};

using Proofs = std::map<std::pair<std::string, std::string>, Proof>;

Proofs read_proofs(const std::string& results) {
  struct Newest {
    std::string current_time;
    std::string stale_time;
    json stale_files;
  };
  std::map<std::pair<std::string, std::string>, Newest> newest;
  Proofs proofs;
  for (const std::string& file : record_files(results)) {
    if (file.find("/scratch/") != std::string::npos) continue;
    for (const json& r : read_records(file)) {
      if (r.value("schema", "") != kParitySchema || r.value("outcome", "") != "pass") continue;
      // A dirty tree may be recorded, but nothing rests on it.
      if (r.at("build").at("dirty").get<bool>()) continue;
      const std::pair key{r.value("op", ""), r.value("variant", "")};
      const std::string time = r.value("recorded_utc", "");
      const json source = r.value("source", json::object());
      Newest& n = newest[key];
      Proof& p = proofs[key];
      if (source.value("digest", "") == source_digest(key.first, key.second)) {
        if (time >= n.current_time) {
          n.current_time = time;
          p.current = record_id(r);
        }
      } else if (time >= n.stale_time) {
        n.stale_time = time;
        p.stale = record_id(r);
        n.stale_files = source.value("files", json::object());
      }
    }
  }
  for (auto& [key, p] : proofs) {
    if (p.current.empty()) p.moved = moved_sources(newest[key].stale_files, key.first, key.second);
  }
  return proofs;
}

Proof proof_of(const Proofs& proofs, const std::string& op, const std::string& variant) {
  const auto it = proofs.find({op, variant});
  return it == proofs.end() ? Proof{} : it->second;
}

std::string backends_of(const VariantInfo& v) {
  std::string text = v.host_declared ? "host" : "";
  if (v.cuda_declared) text += text.empty() ? "cuda" : ", cuda";
  return text;
}

std::string exactness_of(const VariantInfo& v) {
  std::string text = to_string(v.exactness);
  if (v.exactness == Exactness::kBitwise) text += " to " + v.bitwise_to;
  return text;
}

json catalog_document(const Proofs& proofs) {
  json ops = json::array();
  for (const OpInfo* op : all_ops()) {
    json rows = json::array();
    for (const VariantInfo& v : op->variants) {
      const Proof p = proof_of(proofs, op->name, v.name);
      json backends = json::array();
      if (v.host_declared) backends.push_back("host");
      if (v.cuda_declared) backends.push_back("cuda");
      rows.push_back(
          {{"name", v.name},
           {"summary", v.summary},
           {"backend", v.host_declared ? "host" : "cuda"},
           {"backends", backends},
           {"stage", to_string(v.stage)},
           {"exactness", to_string(v.exactness)},
           {"bitwise_to", v.exactness == Exactness::kBitwise ? json(v.bitwise_to) : json()},
           {"deterministic", v.deterministic},
           {"batch_invariant", v.batch_invariant},
           {"host_sync", v.host_sync},
           {"layout", v.layout.empty() ? json() : json(v.layout)},
           {"source_sha256", source_digest(op->name, v.name)},
           {"proof", p.current.empty() ? json() : json(p.current)},
           {"stale_proof",
            p.current.empty() && !p.stale.empty() ? json{{"record", p.stale}, {"moved", p.moved}}
                                                  : json()}});
    }
    ops.push_back({{"op", op->name},
                   {"switch", op->switch_name},
                   {"kind", to_string(op->kind)},
                   {"summary", op->summary},
                   {"cases", op->case_names.size()},
                   {"variants", rows}});
  }
  return {
      {"schema", "assay-catalog"}, {"schema_version", 1}, {"build", build_json()}, {"ops", ops}};
}

void print_table(const Proofs& proofs) {
  std::cout << fmt::format("{:<18} {:<14} {:<10} {:<9} {:<22} {}\n",
                           "op",
                           "variant",
                           "backend",
                           "stage",
                           "class",
                           "proof");
  for (const OpInfo* op : all_ops()) {
    for (const VariantInfo& v : op->variants) {
      const Proof p = proof_of(proofs, op->name, v.name);
      std::string proof = p.current.empty() ? "none" : p.current;
      if (p.current.empty() && !p.stale.empty()) proof = "stale " + p.stale + ": moved " + p.moved;
      std::cout << fmt::format("{:<18} {:<14} {:<10} {:<9} {:<22} {}\n",
                               op->name,
                               v.name,
                               backends_of(v),
                               to_string(v.stage),
                               exactness_of(v),
                               proof);
    }
  }
  std::cout << "\nA variant runs when its op's switch names it: ASSAY_<OP>=<variant>; unset means "
               "stock.\n";
}

// The comment that opens a header, without the slashes.
std::string leading_comment(const std::string& text) {
  std::istringstream in(text);
  std::string line;
  std::string out;
  while (std::getline(in, line) && line.starts_with("//")) {
    line.erase(0, line.starts_with("// ") ? 3 : 2);
    out += line + "\n";
  }
  return out;
}

std::string escape_cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\\');
  return text;
}

// What the variant refuses, over the op's cases: on a device that can do nothing and on one that can do everything, so
// that the page is the same wherever it is written.
std::string limits_of(const OpInfo& op, std::size_t variant) {
  const VariantInfo& v = op.variants[variant];
  std::map<std::string, std::size_t> reasons;  // reason -> cases that meet it on the best device
  for (const Backend backend : {Backend::kHost, Backend::kCuda}) {
    if (!(backend == Backend::kHost ? v.host_declared : v.cuda_declared)) continue;
    DeviceInfo bare;
    bare.backend = backend;
    DeviceInfo best = bare;
    best.avx2 = best.avx512_vnni = true;
    best.cc = 1000;
    best.threads = best.multiprocessors = best.shared_bytes_per_block = best.l2_bytes = INT_MAX;
    best.memory_bytes = SIZE_MAX;
    for (std::size_t c = 0; c < op.case_names.size(); ++c) {
      for (const DeviceInfo* device : {&bare, &best}) {
        const Why why = op.declared_ineligible(c, static_cast<int>(variant), *device);
        if (why != nullptr) reasons[why] += device == &best ? 1 : 0;
      }
    }
  }
  std::string text;
  for (const auto& [reason, cases] : reasons) {
    text += (text.empty() ? "" : "; ") + reason;
    if (cases > 0) text += fmt::format(" ({} of {} cases)", cases, op.case_names.size());
  }
  if (!text.empty()) return text;
  return op.case_names.empty() ? "see its declaration" : "nothing";
}

// A link from docs/knobs to the variant's note, or "-" without one.
std::string note_link(const std::string& source,
                      const std::string& op,
                      const std::string& variant) {
  const std::string path = "variants/" + op + "/" + variant + ".md";
  return fs::exists(fs::path(source) / path) ? "[note](../../" + path + ")" : "-";
}

std::string op_page(const OpInfo& op, const Proofs& proofs, const std::string& source) {
  std::string page = fmt::format(
      "# {}\n\n{}. Kind: {}. Switch: `{}`. Contract: "
      "[op.h](../../kernels/{}/op.h).\n\n```\n{}```\n\n",
      op.name,
      op.summary,
      to_string(op.kind),
      op.switch_name,
      op.name,
      leading_comment(read_file(source + "/kernels/" + op.name + "/op.h")));
  page += fmt::format(
      "`{}` unset or `stock`: stock. `{}=<variant>`: the variant where it is eligible. "
      "`{}=parity:<variant>`: both run, stock is served, the difference is reported.\n\n",
      op.switch_name,
      op.switch_name,
      op.switch_name);
  page +=
      "| variant | what it does | backend | stage | class | refuses | layout | same bits on "
      "repeat | rows independent | note | newest record |\n";
  page += "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < op.variants.size(); ++i) {
    const VariantInfo& v = op.variants[i];
    const Proof p = proof_of(proofs, op.name, v.name);
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                        v.name,
                        escape_cell(v.summary),
                        backends_of(v),
                        to_string(v.stage),
                        exactness_of(v),
                        escape_cell(limits_of(op, i)),
                        v.layout.empty() ? "the file's" : "`" + v.layout + "`",
                        v.deterministic ? "yes" : "not promised",
                        v.batch_invariant ? "yes" : "not promised",
                        v.name == "stock" ? "-" : note_link(source, op.name, v.name),
                        p.newest().empty() ? "none" : "`" + p.newest() + "`");
  }
  if (op.case_names.empty()) {
    page += "\nNo parity cases of its own: it is judged where the engine runs it.\n";
  } else {
    page += fmt::format(
        "\n{} parity cases: `parity_{} --list`. Whether a record is current for the present "
        "sources: `assay catalog`.\n",
        op.case_names.size(),
        op.name);
  }
  return page;
}

void write_markdown(const std::string& dir, const Proofs& proofs, const std::string& source) {
  fs::create_directories(dir);
  std::string index =
      "# Knobs\n\nWritten by `assay catalog --markdown docs/knobs`; a test fails when these pages "
      "and the tree differ.\n\n"
      "| op | switch | kind | variants |\n|---|---|---|---|\n";
  for (const OpInfo* op : all_ops()) {
    std::string names;
    for (const VariantInfo& v : op->variants) names += (names.empty() ? "`" : ", `") + v.name + "`";
    index += fmt::format("| [{}]({}.md) | `{}` | {} | {} |\n",
                         op->name,
                         op->name,
                         op->switch_name,
                         to_string(op->kind),
                         names);
    write_file_atomic(dir + "/" + op->name + ".md", op_page(*op, proofs, source));
  }
  index +=
      "\nGeneral: `ASSAY_STRICT=1` makes an ineligible variant an error instead of a fallback; "
      "`ASSAY_SYNC=1` waits after each "
      "launch; `ASSAY_LOG_LEVEL` is trace, debug, info, warning, error, critical or off. Any other "
      "`ASSAY_` variable is refused.\n";
  write_file_atomic(dir + "/index.md", index);
}

int run(int argc, char** argv) {
  CommandLine app("Ops, variants, stages and proofs", "assay catalog", "assay catalog --json -");
  std::string json_path;
  std::string markdown;
  std::string results = "results";
  std::string source = ".";
  app.add_option("--json", json_path, "write the catalog as JSON, - is stdout").type_name("PATH");
  app.add_option("--markdown", markdown, "write one page an op and an index").type_name("DIR");
  app.add_option("--results", results, "folder of records (default results)").type_name("DIR");
  app.add_option("--source", source, "root of the source tree, read by --markdown (default .)")
      .type_name("DIR");
  app.parse(argc, argv);
  const Proofs proofs = read_proofs(results);
  if (!json_path.empty()) write_json(json_path, catalog_document(proofs).dump(2));
  if (!markdown.empty()) write_markdown(markdown, proofs, source);
  if (json_path.empty() && markdown.empty()) print_table(proofs);
  return 0;
}

}  // namespace

extern const Command command_catalog;
const Command command_catalog{"catalog", "lab", "ops, variants, stages and proofs", run};

}  // namespace assay
