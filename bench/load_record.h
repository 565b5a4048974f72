// The record of the daemon under load (results/schema/daemon_load.schema.json, written by
// engine/daemon/fake/daemon_load.py): every goal's value and word from the raw values.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace assay {

// What does not follow from the raw values of a record that fits its schema. Empty when all is well.
std::vector<std::string> load_record_faults(const nlohmann::json& record);

}  // namespace assay
