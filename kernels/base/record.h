// Records: one JSON object a line of a .jsonl file under results/, sealed by its own hash. Parity and A/B records share
// the frame {schema, schema_version, .., record_sha256}; what else they hold is data in results/schema/<name>.schema.json.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/device_info.h"

namespace assay {

// The one text of a JSON value: keys sorted, no white space, ASCII with \u escapes, shortest numbers that read back to
// the same double, non-finite numbers as null. Reading the text back and writing it again gives the same bytes.
std::string canonical_json(const nlohmann::json& value);

// SHA-256 of the canonical text without the key record_sha256, hex.
std::string record_digest(const nlohmann::json& record);
// Sets record_sha256. Last step before a record is written.
void seal_record(nlohmann::json& record);
// First 16 digits of record_sha256: how docs and messages name a record. Empty when it has none.
std::string record_id(const nlohmann::json& record);

// Seals the record and appends it as one line, in one write, creating missing folders. Throws std::logic_error for a
// record that its schema refuses (a tool must not write what `verify` would reject), Error when the file cannot be written.
void append_record(const std::string& path, nlohmann::json& record);

// Every record of a .jsonl file, in order. InputError naming path, line and byte offset for a line that is not JSON, not
// an object, of an unknown schema or refused by it, or whose hash differs from its content.
std::vector<nlohmann::json> read_records(const std::string& path);
// The same for text already read; `name` stands for the path in messages.
std::vector<nlohmann::json> parse_records(std::string_view text, const std::string& name);
// All *.jsonl below a folder, sorted; empty when there is no such folder.
std::vector<std::string> record_files(const std::string& folder);

// Blocks that every record and JSON document shares.
nlohmann::json build_json();  // version, commit, dirty, tree_sha256, ..
nlohmann::json machine_json(
    const DeviceInfo& device);  // card, backend, cpu, threads, cuda; never a host name
nlohmann::json source_json(std::string_view op,
                           std::string_view variant);  // digest and files {path: first 16 digits}
// Which of the files behind a source_json now differ, in words, at most three by name; empty when none does.
std::string moved_sources(const nlohmann::json& recorded_files,
                          std::string_view op,
                          std::string_view variant);
// "2026-01-31T12:34:56Z", now.
std::string utc_now();

}  // namespace assay
