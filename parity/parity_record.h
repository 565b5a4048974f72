// The parity record (results/schema/parity.schema.json): what was judged, on what, by which sources.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "parity/parity.h"

namespace assay {

// One variant's record, not yet sealed. Without a filter only: a record speaks for every case of the op.
nlohmann::json parity_record(const OpInfo& op,
                             const ParityOptions& options,
                             const VariantResult& result);

// The JSON document of `parity_<op> --json`: schema "assay-parity-report", one entry a variant, faults included.
nlohmann::json parity_document(const OpInfo& op,
                               const ParityOptions& options,
                               const ParityResult& result);

// What does not add up inside a record that fits its schema: totals, worst values and outcome are recomputed from the
// cases, and every case from its class's gate. Empty when all is well.
std::vector<std::string> parity_record_faults(const nlohmann::json& record);

}  // namespace assay
