#include "parity/parity_record.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "kernels/base/build_id.h"
#include "kernels/base/measure.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

json finite_or_null(double v) { return std::isfinite(v) ? json(v) : json(nullptr); }
double number_or_infinity(const json& v) {
  return v.is_null() ? std::numeric_limits<double>::infinity() : v.get<double>();
}

json case_json(const CaseResult& c) {
  return {{"name", c.name},
          {"shape", c.shape},
          {"pass", c.outcome == CaseOutcome::kPass},
          {"bytes", c.bytes},
          {"values", c.values},
          {"mismatched_bytes", c.mismatched_bytes},
          {"max_ulp", c.max_ulp},
          {"rel_l2", finite_or_null(c.rel_l2)},
          {"stock_rel_l2", finite_or_null(c.stock_rel_l2)},
          {"error_bound", finite_or_null(c.error_bound)}};
}

// The judged part, shared by the record and the document.
json result_json(const ParityOptions& options, const VariantResult& result) {
  json cases = json::array();
  json skipped = json::array();
  double worst_rel_l2 = 0.0;
  std::uint64_t worst_ulp = 0;
  std::uint64_t mismatched = 0;
  for (const auto& c : result.cases) {
    if (c.outcome == CaseOutcome::kSkip) {
      skipped.push_back({{"name", c.name}, {"shape", c.shape}, {"reason", c.skip_reason}});
      continue;
    }
    cases.push_back(case_json(c));
    worst_rel_l2 = worse(worst_rel_l2, c.rel_l2);
    worst_ulp = std::max(worst_ulp, c.max_ulp);
    mismatched = std::max(mismatched, c.mismatched_bytes);
  }
  const VariantInfo& v = result.info;
  return {{"variant", v.name},
          {"backend", to_string(options.device.backend)},
          {"class", to_string(v.exactness)},
          {"bitwise_to", v.exactness == Exactness::kBitwise ? json(v.bitwise_to) : json(nullptr)},
          {"deterministic", v.deterministic},
          {"batch_invariant", v.batch_invariant},
          {"outcome", result.verdict() == Exit::kGood ? "pass" : "fail"},
          {"cases", cases},
          {"skipped", skipped},
          {"totals",
           {{"cases", result.cases.size()},
            {"compared", result.count(CaseOutcome::kPass) + result.count(CaseOutcome::kFail)},
            {"skipped", result.count(CaseOutcome::kSkip)},
            {"failed", result.count(CaseOutcome::kFail)}}},
          {"worst",
           {{"rel_l2", finite_or_null(worst_rel_l2)},
            {"max_ulp", worst_ulp},
            {"mismatched_bytes", mismatched}}}};
}

}  // namespace

json parity_record(const OpInfo& op, const ParityOptions& options, const VariantResult& result) {
  json record = result_json(options, result);
  record["schema"] = "assay-parity";
  record["schema_version"] = "1.0.0";
  record["recorded_utc"] = utc_now();
  record["op"] = op.name;
  record["rng_seed"] = options.rng_seed;
  record["threads"] = options.threads;
  record["graph"] = options.graph;
  record["source"] = source_json(op.name, result.info.name);
  record["exe_sha256"] = executable_sha256();
  record["build"] = build_json();
  record["machine"] = machine_json(options.device);
  return record;
}

json parity_document(const OpInfo& op, const ParityOptions& options, const ParityResult& result) {
  json rows = json::array();
  for (const auto& v : result.variants) {
    json row = result_json(options, v);
    row["source_digest"] = source_digest(op.name, v.info.name);
    row["unchecked"] = v.unchecked;
    row["verdict"] = v.verdict() == Exit::kGood         ? "pass"
                     : v.verdict() == Exit::kNoHardware ? "no hardware"
                                                        : "fail";
    row["faults"] = json::array();
    for (const auto& c : v.cases) {
      for (const auto& fault : c.faults) row["faults"].push_back(fault);
    }
    rows.push_back(std::move(row));
  }
  return {{"schema", "assay-parity-report"},
          {"schema_version", "1.0.0"},
          {"op", op.name},
          {"rng_seed", options.rng_seed},
          {"threads", options.threads},
          {"filter", options.filter},
          {"verdict",
           result.verdict() == Exit::kGood         ? "pass"
           : result.verdict() == Exit::kNoHardware ? "no hardware"
                                                   : "fail"},
          {"build", build_json()},
          {"machine", machine_json(options.device)},
          {"variants", std::move(rows)}};
}

std::vector<std::string> parity_record_faults(const json& record) {
  std::vector<std::string> faults;
  const auto expect = [&](bool good, const std::string& what) {
    if (!good) faults.push_back(what);
  };
  const std::string cls = record.at("class");
  std::size_t failed = 0;
  double worst_rel_l2 = 0.0;
  std::uint64_t worst_ulp = 0;
  std::uint64_t mismatched = 0;
  for (const auto& c : record.at("cases")) {
    const std::string name = c.at("name");
    const double rel_l2 = number_or_infinity(c.at("rel_l2"));
    worst_rel_l2 = worse(worst_rel_l2, rel_l2);
    worst_ulp = std::max(worst_ulp, c.at("max_ulp").get<std::uint64_t>());
    mismatched = std::max(mismatched, c.at("mismatched_bytes").get<std::uint64_t>());
    if (!c.at("pass").get<bool>()) {
      ++failed;
      continue;
    }
    if (cls == "bitwise") {
      expect(c.at("mismatched_bytes") == 0,
             "case " + name + " passes as bitwise with differing bytes");
    } else if (cls != "model-level") {
      expect(rel_l2 <= number_or_infinity(c.at("error_bound")) && !c.at("error_bound").is_null(),
             "case " + name + " passes with an error above its bound");
    }
  }
  const auto& totals = record.at("totals");
  const std::size_t compared = record.at("cases").size();
  const std::size_t skipped = record.at("skipped").size();
  expect(totals.at("compared") == compared, "totals.compared is not the number of cases");
  expect(totals.at("skipped") == skipped, "totals.skipped is not the number of skipped cases");
  expect(totals.at("cases") == compared + skipped, "totals.cases is not compared + skipped");
  expect(totals.at("failed") == failed, "totals.failed is not the number of failed cases");
  const auto& worst = record.at("worst");
  expect(number_or_infinity(worst.at("rel_l2")) == worst_rel_l2,
         "worst.rel_l2 is not the cases' worst");
  expect(worst.at("max_ulp") == worst_ulp, "worst.max_ulp is not the cases' worst");
  expect(worst.at("mismatched_bytes") == mismatched,
         "worst.mismatched_bytes is not the cases' worst");
  expect((record.at("outcome") == "pass") == (failed == 0 && compared > 0),
         "outcome does not follow from the cases");
  expect(record.at("bitwise_to").is_null() == (cls != "bitwise"),
         "bitwise_to is set exactly for the class bitwise");
  return faults;
}

}  // namespace assay
