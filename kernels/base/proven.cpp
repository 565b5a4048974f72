#include "kernels/base/proven.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <set>

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

// Cards other than the device's that have a set, in words.
std::string other_cards(const std::string& results, const DeviceInfo& device) {
  std::set<std::string> cards;
  for (const std::string& path : proven_files(results)) {
    try {
      const ProvenSet set = parse_proven(read_file(path), path);
      if (!set.scratch && set.backend == to_string(device.backend) && set.card != device.name)
        cards.insert("'" + set.card + "'");
    } catch (const InputError&) {
      continue;  // a set of another card that cannot be read is no news for this one
    }
  }
  std::string text;
  for (const std::string& card : cards) text += (text.empty() ? "" : ", ") + card;
  return text;
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
  json document({{"schema", "assay-proven"},
                 {"schema_version", "1.0.0"},
                 {"recorded_utc", set.recorded_utc},
                 {"card", set.card},
                 {"backend", set.backend},
                 {"cuda", set.cuda},
                 {"commit", set.commit},
                 {"scratch", set.scratch},
                 {"ops", ops}});
  for (const auto& [lane, s] : set.stacks)
    document["stacks"][lane] = {
        {"record", s.record}, {"members", s.members}, {"speedup", s.speedup}};
  return canonical_json(document);
}

ProvenSet parse_proven(std::string_view text, const std::string& name) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::parse_error& e) {
    throw InputError(name + ": byte " + std::to_string(e.byte > 0 ? e.byte - 1 : 0) + ": not JSON");
  } catch (const json::out_of_range&) {
    throw InputError(name + ": a number is out of range");
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
  const json stacks = document.value("stacks", json::object());
  for (const auto& [lane, s] : stacks.items()) {
    set.stacks[lane] = {
        s.at("record"), s.at("members").get<std::map<std::string, std::string>>(), s.at("speedup")};
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

std::vector<std::string> proven_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("proven_") && name.ends_with(".json"))
      files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string newest_proven(const std::string& results,
                          const DeviceInfo& device,
                          std::vector<std::string>& notes) {
  std::string best;
  std::string best_time;
  for (const std::string& path : proven_files(results + "/" + card_slug(device.name))) {
    try {
      const ProvenSet set = parse_proven(read_file(path), path);
      if (set.card != device.name || set.backend != to_string(device.backend)) continue;
      if (set.scratch) {
        notes.push_back("passed over " + path + ": a scratch set, not of a clean tree");
      } else if (best.empty() || set.recorded_utc > best_time) {
        best = path;
        best_time = set.recorded_utc;
      }
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
      const std::string moved = moved_sources(e.files, op, e.variant);
      out.notes.push_back(what + " not armed, its proof is stale: " +
                          (moved.empty() ? "its sources" : moved) + " changed");
      continue;
    }
    char speed[32];
    std::snprintf(speed, sizeof speed, "x%.3f", e.speedup);
    out.profile[op] = e.variant;
    out.proofs[op] = e;
    out.notes.push_back(what + " armed: " + speed + " against stock in record " +
                        e.ab_record.substr(0, 16) + ", parity " + e.parity_record.substr(0, 16));
  }
  if (out.notes.empty())
    out.notes.push_back("the proven set of " + set.recorded_utc + " has no winner for the " +
                        std::string(lane) + " lane; running stock");
  return out;
}

Arming arm_newest(const DeviceInfo& device, std::string_view lane) {
  Arming out;
  const std::string results = find_results_folder();
  const std::string path = results.empty() ? "" : newest_proven(results, device, out.notes);
  if (path.empty()) {
    const std::string others = results.empty() ? "" : other_cards(results, device);
    out.notes.push_back("no proven set is recorded for '" + device.name + "'" +
                        (others.empty() ? "" : ", only for " + others) +
                        "; running stock (assay prove makes one)");
    return out;
  }
  Arming armed = arm(parse_proven(read_file(path), path), device, lane);
  armed.notes.insert(armed.notes.begin(), out.notes.begin(), out.notes.end());
  armed.file = fs::relative(path, fs::path(results).parent_path()).string();
  return armed;
}

}  // namespace assay
