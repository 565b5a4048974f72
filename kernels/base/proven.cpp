#include "kernels/base/proven.h"

#include <cctype>
#include <cstdio>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "kernels/base/build_id.h"
#include "kernels/base/error.h"
#include "kernels/base/json_schema.h"
#include "kernels/base/op_info.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// "13.0.88" -> "13.0"; arming compares no more of a toolkit than that.
std::string major_minor(const std::string& version) {
  const auto first = version.find('.');
  if (first == std::string::npos) return version;
  return version.substr(0, version.find('.', first + 1));
}

// The first files that differ between the proof's sources and this build's, in words.
std::string what_moved(const ProvenEntry& entry, const std::string& op) {
  std::map<std::string, std::string> now;
  for (const SourceFile& f : source_files(op, entry.variant))
    now[f.path] = std::string(f.sha256).substr(0, 16);
  std::vector<std::string> moved;
  for (const auto& [path, digest] : now) {
    const auto it = entry.files.find(path);
    if (it == entry.files.end()) {
      moved.push_back(path + " (new)");
    } else if (it->second != digest) {
      moved.push_back(path);
    }
  }
  for (const auto& [path, digest] : entry.files) {
    if (!now.contains(path)) moved.push_back(path + " (gone)");
  }
  std::string text;
  for (std::size_t i = 0; i < moved.size() && i < 3; ++i) text += (i == 0 ? "" : ", ") + moved[i];
  if (moved.size() > 3) text += " and " + std::to_string(moved.size() - 3) + " more";
  return text.empty() ? "its sources" : text;
}

}  // namespace

std::string proven_text(const ProvenSet& set) {
  json ops = json::object();
  for (const auto& [op, lanes] : set.ops) {
    for (const auto& [lane, e] : lanes) {
      ops[op][lane] = {{"variant", e.variant},
                       {"parity_record", e.parity_record},
                       {"ab_record", e.ab_record},
                       {"source_digest", e.source_digest},
                       {"files", e.files},
                       {"speedup", e.speedup}};
    }
  }
  return canonical_json({{"schema", "assay-proven"},
                         {"schema_version", "1.0.0"},
                         {"recorded_utc", set.recorded_utc},
                         {"card", set.card},
                         {"backend", set.backend},
                         {"cuda", set.cuda},
                         {"commit", set.commit},
                         {"scratch", set.scratch},
                         {"ops", ops}});
}

ProvenSet parse_proven(std::string_view text, const std::string& name) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::parse_error& e) {
    throw InputError(name + ": byte " + std::to_string(e.byte > 0 ? e.byte - 1 : 0) + ": not JSON");
  }
  const json* schema = schema_named("assay-proven");
  if (schema == nullptr)
    throw std::logic_error("results/schema/proven.schema.json is not in this build");
  const auto faults = schema_faults(*schema, document);
  if (!faults.empty()) throw InputError(name + ": " + faults.front());
  ProvenSet set;
  set.recorded_utc = document.at("recorded_utc");
  set.card = document.at("card");
  set.backend = document.at("backend");
  set.cuda = document.at("cuda");
  set.commit = document.at("commit");
  set.scratch = document.at("scratch");
  for (const auto& [op, lanes] : document.at("ops").items()) {
    for (const auto& [lane, e] : lanes.items()) {
      set.ops[op][lane] = {e.at("variant"),
                           e.at("parity_record"),
                           e.at("ab_record"),
                           e.at("source_digest"),
                           e.at("files").get<std::map<std::string, std::string>>(),
                           e.at("speedup")};
    }
  }
  return set;
}

std::string card_slug(std::string_view card) {
  std::string slug;
  for (const char c : card) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  return slug.empty() ? "unknown" : slug;
}

std::string find_results_folder() {
  std::error_code error;
  for (const fs::path& start :
       {fs::read_symlink("/proc/self/exe", error).parent_path(), fs::current_path(error)}) {
    for (fs::path dir = start; !dir.empty(); dir = dir.parent_path()) {
      if (fs::is_directory(dir / "results" / "schema", error)) return (dir / "results").string();
      if (dir == dir.parent_path()) break;
    }
  }
  return "";
}

std::string newest_proven(const std::string& results,
                          const DeviceInfo& device,
                          std::vector<std::string>& notes) {
  const std::string wanted = std::string("proven_") + to_string(device.backend) + ".json";
  std::string best;
  std::string best_time;
  bool best_scratch = true;
  std::error_code error;
  const fs::path root = fs::path(results) / card_slug(device.name);
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename() != wanted) continue;
    const std::string path = it->path().string();
    try {
      const ProvenSet set = parse_proven(read_file(path), path);
      if (set.card != device.name) continue;
      const bool better = best.empty() || (best_scratch && !set.scratch) ||
                          (best_scratch == set.scratch && set.recorded_utc > best_time);
      if (!better) continue;
      best = path;
      best_time = set.recorded_utc;
      best_scratch = set.scratch;
    } catch (const InputError& e) {
      notes.push_back(std::string("passed over ") + e.what());
    }
  }
  return best;
}

Arming arm(const ProvenSet& set, const DeviceInfo& device, std::string_view lane) {
  Arming out;
  const auto refuse_all = [&](const std::string& why) {
    out.notes.push_back("proven set of " + set.recorded_utc + " not armed: " + why);
    return out;
  };
  if (set.card != device.name)
    return refuse_all("it is of card '" + set.card + "', this is '" + device.name + "'");
  if (set.backend != to_string(device.backend))
    return refuse_all("it is of backend " + set.backend);
  if (device.backend == Backend::kCuda && major_minor(set.cuda) != major_minor(build_id().cuda)) {
    return refuse_all("it was built with CUDA " + set.cuda + ", this build with " +
                      build_id().cuda);
  }
  for (const auto& [op, lanes] : set.ops) {
    auto it = lanes.find(std::string(lane));
    if (it == lanes.end()) it = lanes.find("any");
    if (it == lanes.end()) continue;
    const ProvenEntry& e = it->second;
    const std::string what = op + "=" + e.variant;
    const OpInfo* info = nullptr;
    for (const OpInfo* o : all_ops()) {
      if (o->name == op) info = o;
    }
    if (info == nullptr || info->find(e.variant) < 0) {
      out.notes.push_back(what + " not armed: this build has no such variant");
      continue;
    }
    if (source_digest(op, e.variant) != e.source_digest) {
      out.notes.push_back(what + " not armed, its proof is stale: " + what_moved(e, op) +
                          " changed");
      continue;
    }
    char speed[32];
    std::snprintf(speed, sizeof speed, "x%.3f", e.speedup);
    out.profile[op] = e.variant;
    out.notes.push_back(what + " armed: " + speed + " against stock in record " +
                        e.ab_record.substr(0, 16) + ", parity " + e.parity_record.substr(0, 16));
  }
  return out;
}

Arming arm_newest(const DeviceInfo& device, std::string_view lane) {
  Arming out;
  const std::string results = find_results_folder();
  const std::string path = results.empty() ? "" : newest_proven(results, device, out.notes);
  if (path.empty()) {
    out.notes.push_back("no proven set is recorded for '" + device.name +
                        "' (assay prove makes one); running stock");
    return out;
  }
  Arming armed = arm(parse_proven(read_file(path), path), device, lane);
  armed.notes.insert(armed.notes.begin(), out.notes.begin(), out.notes.end());
  return armed;
}

}  // namespace assay
