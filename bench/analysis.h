// From the plan and the raw runs of a record to its analysis, A/A account and verdict. One pure function, used by the
// driver when it writes a record and by `assay verify` when it checks one: the two cannot disagree about the rules.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace assay {

// `record` needs plan, arms, parity, runs and aa_pool. Returns {"analysis": .., "aa": .., "verdict": ..}; the same bits
// wherever it runs. InputError naming the run when the runs do not fit the plan.
nlohmann::json analyse(const nlohmann::json& record);
// The code of a run that was intact when the other arm of its pair failed: set aside, held against nobody.
inline constexpr const char* kPartnerFailed = "PARTNER_FAILED";

// Wall time less the time one thread waited for a core; wall time for more threads, whose waits overlap with each other's work.
// Never less than the CPU time used.
double busy_time(double wall_s, double cpu_s, double wait_s, int threads);

// The sentence of a report: "avx2 is +182.1 % [+180.2, +184.4] against stock, 95.75 % exact, 12 pairs, .."
std::string verdict_sentence(const nlohmann::json& record);

// Digest of one tier's raw samples as stored in the run under "sha256" (16 digits); `samples` with or without that key.
std::string samples_digest(const nlohmann::json& samples);

// A/A log ratios of a record, in run order; empty for records of another lane, op, tier set, thread count or card than `like`.
// They form the pool from which the next plan's noise is judged.
std::vector<double> aa_differences(const nlohmann::json& record, const nlohmann::json& like);
// The key that decides whether two records share a pool.
std::string aa_pool_key(const nlohmann::json& record);

// SHA-256 over the sources of the statistics (stats and analysis), hex.
std::string analysis_code_sha256();

}  // namespace assay
