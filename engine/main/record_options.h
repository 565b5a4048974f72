// What programs that measure share: the flags --out, --scratch and --json, the frame of their records and where these go.
#pragma once
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "kernels/base/device_info.h"

namespace assay {

class CommandLine;

struct RecordOptions {
  std::string out;  // folder of results; empty: the record is not stored
  bool scratch = false;
  std::string json_path;

  bool quiet() const { return json_path == "-"; }  // stdout belongs to the document
};

// --out --scratch --json
void add_record_options(CommandLine& app, RecordOptions& options);
// Before the work: a record of a dirty build needs --scratch. UserError.
void check_record_options(const RecordOptions& options);

// {schema, schema_version, recorded_utc, scratch, exe_sha256, build, machine}
nlohmann::json record_frame(const char* schema, const DeviceInfo& device);
// Seals the record, writes the --json document and appends it to <out>/<card>/<date>_<commit>/<file>, whose path it prints.
void store_record(const RecordOptions& options, nlohmann::json record, const char* file);

}  // namespace assay
