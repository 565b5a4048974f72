// Traces in other clothes: the JSONL twin (lossless both ways), the route_trace CSV of public captures, and the kinds by name.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "traces/trace.h"

namespace assay {

enum class TraceKind : std::uint8_t { kMrt, kJsonl, kCsv, kIds, kOracleGeneral };
const char* to_string(TraceKind kind);
// By the magic for an existing `.mrt`, else by suffix: .mrt .jsonl .csv .ids .oracleGeneral .oracleGeneral.bin. InputError
// listing the suffixes when neither tells, or when the file cannot be read.
TraceKind kind_of_input(const std::string& path);
// By suffix alone; UserError listing the suffixes.
TraceKind kind_of_output(const std::string& path);

// Writes `out` as JSON lines: one header line, then a line a step.
void mrt_to_jsonl(const std::string& in, const std::string& out);
// InputError naming line and byte offset. The result has the same bytes as the trace the JSONL was made from; a file with
// only the required keys is completed: ids as narrow as they fit, kinds and table from the steps themselves.
void jsonl_to_mrt(const std::string& in, const std::string& out);
// `turn,phase,step,layer,slot,expert,weight,residency,expert_bytes` after `#` comment lines, rows in any order. A turn is a
// conversation; weights are stored as f32; `expert_bytes` of the header is the mean over the layers named in comments.
void csv_to_mrt(const std::string& in, const std::string& out);

}  // namespace assay
