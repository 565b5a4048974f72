#include "kernels/base/record.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <stdexcept>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/base/build_id.h"
#include "kernels/base/error.h"
#include "kernels/base/json_schema.h"
#include "kernels/base/program.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

using nlohmann::json;
constexpr const char* kSeal = "record_sha256";

// Empty when the record fits the schema that it names.
std::string schema_complaint(const json& record) {
  if (!record.is_object()) return "not a JSON object";
  const auto it = record.find("schema");
  if (it == record.end() || !it->is_string()) return "lacks the key \"schema\"";
  const json* schema = schema_named(it->get_ref<const std::string&>());
  if (schema == nullptr) {
    std::string names;
    for (const auto& name : schema_names()) names += (names.empty() ? "" : ", ") + name;
    return "unknown schema " + it->dump() + ": known are " + names;
  }
  const auto faults = schema_faults(*schema, record);
  return faults.empty() ? "" : faults.front();
}

}  // namespace

std::string canonical_json(const json& value) {
  // json's objects are sorted maps, and its number writer gives the shortest text that reads back.
  return value.dump(-1, ' ', true, json::error_handler_t::strict);
}

std::string record_digest(const json& record) {
  json open = record;
  open.erase(kSeal);
  return sha256_hex(canonical_json(open));
}

void seal_record(json& record) { record[kSeal] = record_digest(record); }

std::string record_id(const json& record) {
  const auto it = record.find(kSeal);
  return it != record.end() && it->is_string() ? it->get<std::string>().substr(0, 16)
                                               : std::string();
}

void append_record(const std::string& path, json& record) {
  seal_record(record);
  if (const std::string complaint = schema_complaint(record); !complaint.empty()) {
    throw std::logic_error("record for " + path + ": " + complaint);
  }
  const auto fail = [&](const char* step, int error) {
    throw Error(Exit::kCheckFailed, path + ": cannot " + step + ": " + std::strerror(error));
  };
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail("create its folder", error.value());
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) fail("open", errno);
  const std::string line = canonical_json(record) + "\n";
  ssize_t written = 0;
  do {
    written = ::write(fd, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  // A short write leaves half a line, which read_records names; it is not completed, for another process may follow.
  const int error = written < 0 ? errno : ENOSPC;
  const bool whole = written == static_cast<ssize_t>(line.size()) && ::fsync(fd) == 0;
  ::close(fd);
  if (!whole) fail("append", error);
}

std::vector<json> parse_records(std::string_view text, const std::string& name) {
  std::vector<json> records;
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t newline = text.find('\n', begin);
    const std::size_t end = std::min(newline, text.size());
    const auto refuse = [&](std::size_t offset, const std::string& why) {
      throw InputError(name + ": line " + std::to_string(line_number) + ", byte " +
                       std::to_string(offset) + ": " + why);
    };
    ++line_number;
    if (newline == std::string_view::npos) refuse(begin, "the last line is cut short (no newline)");
    const std::string_view line = text.substr(begin, end - begin);
    json record;
    try {
      record = json::parse(line);
    } catch (const json::parse_error& e) {
      refuse(begin + (e.byte > 0 ? e.byte - 1 : 0), "not JSON");
    } catch (const json::out_of_range&) {
      refuse(begin, "a number is out of range");
    }
    if (const std::string complaint = schema_complaint(record); !complaint.empty())
      refuse(begin, complaint);
    if (record.value(kSeal, "") != record_digest(record)) {
      refuse(begin,
             "record_sha256 differs from the record's content: it was edited after it was written");
    }
    records.push_back(std::move(record));
    begin = end + 1;
  }
  return records;
}

std::vector<json> read_records(const std::string& path) {
  return parse_records(read_file(path), path);
}

std::vector<std::string> record_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file(error) && it->path().extension() == ".jsonl")
      files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

json build_json() {
  const BuildId& b = build_id();
  return {{"version", b.version},
          {"commit", b.commit},
          {"dirty", b.dirty},
          {"tree_sha256", b.tree_sha256},
          {"compiler", b.compiler},
          {"cuda", b.cuda},
          {"build_type", b.build_type}};
}

json machine_json(const DeviceInfo& device) {
  return {{"card", device.name},
          {"backend", to_string(device.backend)},
          {"cpu", host_device().name},
          {"threads", host_device().threads},
          {"cuda", build_id().cuda}};
}

json source_json(std::string_view op, std::string_view variant) {
  json files = json::object();
  for (const auto& file : source_files(op, variant))
    files[file.path] = std::string(file.sha256).substr(0, 16);
  return {{"digest", source_digest(op, variant)}, {"files", std::move(files)}};
}

std::string moved_sources(const json& recorded_files,
                          std::string_view op,
                          std::string_view variant) {
  json now = source_json(op, variant).at("files");
  std::vector<std::string> names;
  for (const auto& [path, digest] : recorded_files.items()) {
    if (!now.contains(path)) {
      names.push_back(path + " (gone)");
    } else if (now[path] != digest) {
      names.push_back(path);
    }
    now.erase(path);
  }
  for (const auto& [path, digest] : now.items()) names.push_back(path + " (added)");
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 3); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > 3) text += " and " + std::to_string(names.size() - 3) + " more";
  return text;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace assay
