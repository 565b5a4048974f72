#include "engine/main/record_options.h"

#include <iostream>

#include <nlohmann/json.hpp>

#include "bench/ab.h"
#include "engine/main/ab_gates.h"
#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/program.h"
#include "kernels/base/record.h"

namespace assay {

using nlohmann::json;

void add_record_options(CommandLine& app, RecordOptions& options) {
  app.add_option("--out", options.out, "append the record below this folder (results)")
      .type_name("DIR");
  app.add_flag("--scratch",
               options.scratch,
               "allow a dirty tree; the record is watermarked and cannot be cited");
  app.add_option("--json", options.json_path, "write the record to a file, - is stdout")
      .type_name("PATH");
}

void check_record_options(const RecordOptions& options) {
  if (!options.out.empty()) require_clean(options.scratch);
}

json record_frame(const char* schema, const DeviceInfo& device) {
  return {{"schema", schema},
          {"schema_version", "1.0.0"},
          {"recorded_utc", utc_now()},
          {"scratch", build_id().dirty},
          {"exe_sha256", executable_sha256()},
          {"build", build_json()},
          {"machine", machine_json(device)}};
}

void store_record(const RecordOptions& options, json record, const char* file) {
  seal_record(record);
  write_json(options.json_path, record.dump());
  if (options.out.empty()) return;
  const std::string card = record.at("machine").at("card");
  const std::string path =
      results_folder(options.out, card, record.at("scratch").get<bool>()) + "/" + file;
  append_record(path, record);
  if (!options.quiet()) std::cout << path << '\n';
}

}  // namespace assay
