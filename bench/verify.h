// Whether a stored record still says what its runs say: schema, hashes, and the analysis and verdict recomputed from plan
// and runs, bit for bit.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "bench/plan.h"
#include "kernels/base/proven.h"

namespace assay {

struct VerifiedRecord {
  int line = 0;
  std::string schema;
  std::string id;       // first 16 digits of record_sha256
  std::string subject;  // "gemv_quant/avx2 STACK-MEMBER"
  bool scratch = false;
  // Whether the sources that were judged or timed are this build's: "current", "stale", or "stale: <what moved>"; empty for a
  // record of no variant. Stale is no fault: the record stays true of its sources.
  std::string sources;
  double seconds = 0.0;             // that it took to verify
  std::vector<std::string> faults;  // "runs/5/samples/decode/wall: ..."; empty: verified
};

// Every record of a .jsonl text. InputError naming file, line and byte offset for what cannot be judged at all: no JSON, cut
// short, an unknown or future schema, keys or types that the schema does not know.
// `judge` adds what other areas know about their own schemas (parity does); it may be empty.
using RecordJudge = std::function<std::vector<std::string>(const nlohmann::json&)>;
std::vector<VerifiedRecord> verify_records(std::string_view text,
                                           const std::string& name,
                                           const RecordJudge& judge = nullptr);
// Faults of one parsed record that fits its schema.
std::vector<std::string> record_faults(const nlohmann::json& record,
                                       const RecordJudge& judge = nullptr);

// What of a proven set its records do not bear out: an entry must name a passing parity record and a confirmed claim of its
// variant, of the same sources and with the same speed-up. `records` by record_sha256; the runs may be left out.
std::vector<std::string> proven_faults(const ProvenSet& set,
                                       const std::map<std::string, nlohmann::json>& records);

// What is missing in the best outside peer of a speed record (schema abg-result, key peer); empty when it is whole. Either
// {name: null, reason} with a reason in words, or name, version, a tier of the plan and its time_s.
std::string peer_fault(const nlohmann::json& peer, const Plan& plan);

}  // namespace assay
