#include "bench/verify.h"

#include <algorithm>
#include <chrono>

#include <nlohmann/json.hpp>

#include "bench/analysis.h"
#include "bench/calibration.h"
#include "bench/campaign.h"
#include "bench/card_rows.h"
#include "bench/cold.h"
#include "bench/expert_stream.h"
#include "bench/harness.h"
#include "bench/plan.h"
#include "bench/stack.h"
#include "bench/stats.h"
#include "kernels/base/build_id.h"
#include "kernels/base/error.h"
#include "kernels/base/json_schema.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;

// First places where two documents differ, as "path: stored X, recomputed Y".
void differences(const json& stored,
                 const json& computed,
                 const std::string& path,
                 std::vector<std::string>& out) {
  if (out.size() >= 8 || stored == computed) return;
  if (stored.is_object() && computed.is_object()) {
    for (const auto& [key, value] : computed.items()) {
      if (key == "code_sha256")
        continue;  // names the statistics' sources; another version must reach the same numbers
      if (!stored.contains(key)) {
        out.push_back(path + "/" + key + ": missing");
      } else {
        differences(stored[key], value, path + "/" + key, out);
      }
    }
    return;
  }
  if (stored.is_array() && computed.is_array() && stored.size() == computed.size()) {
    for (std::size_t i = 0; i < stored.size(); ++i)
      differences(stored[i], computed[i], path + "/" + std::to_string(i), out);
    return;
  }
  const auto brief = [](const json& v) {
    const std::string text = v.dump();
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  };
  out.push_back(path + ": stored " + brief(stored) + ", recomputed " + brief(computed));
}

// A cold claim of the host rests on a canary for every tier.
std::vector<std::string> cold_faults(const json& record, const Plan& plan) {
  std::vector<std::string> faults;
  if (plan.backend != "host" || plan.regime == "hot") return faults;
  const json cold = record.value("cold", json::object());
  for (const PlanTier& t : plan.tiers) {
    const std::string where = "cold/" + t.id;
    if (!cold.contains(t.id)) {
      faults.push_back(where + ": no canary, so the cold claim is void");
      continue;
    }
    const json& c = cold[t.id];
    const double ratio =
        c.at("canary_bytes_per_s").get<double>() / c.at("memory_bytes_per_s").get<double>();
    if (c.at("ratio") != ratio) faults.push_back(where + "/ratio: does not follow from the rates");
    if (!(ratio <= kCanaryLimit)) faults.push_back(where + ": not cold, so the cold claim is void");
  }
  return faults;
}

std::vector<std::string> ab_faults(const json& record) {
  std::vector<std::string> faults;
  const json& stored_plan = record.at("plan");
  Plan plan;
  try {
    plan = plan_from_json(stored_plan.at("body"), "plan/body");
  } catch (const InputError& e) {
    return {e.what()};
  }
  const std::string hash = plan_sha256(plan);
  if (stored_plan.at("sha256") != hash)
    faults.push_back("plan/sha256: the plan's hash is " + hash.substr(0, 16) +
                     "..: the plan was edited");
  if (stored_plan.at("order_seed") != std::to_string(order_seed(hash)))
    faults.push_back("plan/order_seed: does not follow from the plan");

  if (const std::string fault = peer_fault(record.at("peer"), plan); !fault.empty())
    faults.push_back(fault);

  std::size_t index = 0;
  for (const json& run : record.at("runs")) {
    const std::string where = "runs/" + std::to_string(index++) + "/samples/";
    for (const auto& [tier, samples] : run.at("samples").items()) {
      if (samples.at("sha256") != samples_digest(samples))
        faults.push_back(where + tier + ": a sample was altered after it was written");
    }
  }
  // The runs must be the plan's: same pairs, same kinds, same arm first. An aborted sitting holds a prefix.
  const Schedule schedule = make_schedule(plan);
  for (const json& arm : record.at("arms")) {
    const bool is_a = arm.at("label") == "A";
    const std::string code(1, is_a ? schedule.code_a : (schedule.code_a == 'X' ? 'Y' : 'X'));
    if (arm.at("code") != code)
      faults.push_back("arms: label " + arm["label"].get<std::string>() + " must have code " +
                       code);
    if (arm.at("variant") != (is_a ? plan.a : plan.b))
      faults.push_back("arms: variant of " + arm["label"].get<std::string>() +
                       " is not the plan's");
  }
  index = 0;
  for (const json& run : record.at("runs")) {
    const std::string where = "runs/" + std::to_string(index++);
    const int pair = run.at("pair");
    const auto it = std::find_if(schedule.pairs.begin(),
                                 schedule.pairs.end(),
                                 [&](const ScheduledPair& p) { return p.pair == pair; });
    if (it == schedule.pairs.end()) {
      if (!plan.extension)
        faults.push_back(where + "/pair: the plan has no pair " + std::to_string(pair));
      continue;
    }
    if (run.at("kind") != to_string(it->kind))
      faults.push_back(where + "/kind: the plan says " + to_string(it->kind));
    const bool is_a = run.at("arm") == std::string(1, schedule.code_a);
    if (run.at("first").get<bool>() != (is_a == it->a_first))
      faults.push_back(where + "/first: not the plan's order");
  }
  for (std::string& fault : cold_faults(record, plan)) faults.push_back(std::move(fault));
  for (std::string& fault : harness_faults(record)) faults.push_back(std::move(fault));
  if (faults.empty()) {
    try {
      const json computed = analyse(record);
      for (const char* part : {"analysis", "aa", "verdict"})
        differences(record.at(part), computed.at(part), part, faults);
    } catch (const InputError& e) {
      faults.push_back(e.what());
    }
  }
  return faults;
}

// The quartiles that are quoted are those of the stored rounds.
std::vector<std::string> probe_faults(const json& record) {
  std::vector<std::string> faults;
  std::size_t index = 0;
  for (const json& arm : record.at("experts_host").at("arms")) {
    const std::string where = "experts_host/arms/" + std::to_string(index++);
    if (arm.at("of_probe") != json(quartiles(arm.at("rounds").get<std::vector<double>>())))
      faults.push_back(where + "/of_probe: not the quartiles of the rounds");
  }
  return faults;
}

// Rates follow from tokens and times, a ratio from the rates, and a row without a peer says why.
std::vector<std::string> model_speed_faults(const json& record) {
  std::vector<std::string> faults;
  std::size_t index = 0;
  for (const json& row : record.at("rows")) {
    const std::string where = "rows/" + std::to_string(index++);
    const auto expect = [&](bool good, const char* key, const char* what) {
      if (!good) faults.push_back(where + "/" + key + ": " + what);
    };
    const double tokens = row.at("tokens");
    const auto ms = row.at("time_ms").get<std::vector<double>>();
    const auto [fastest, slowest] = std::minmax_element(ms.begin(), ms.end());
    const double mine = row.at("median_tokens_per_s");
    expect(
        mine == 1000.0 * tokens / stats::median(ms), "median_tokens_per_s", "not that of time_ms");
    expect(row.at("slowest_tokens_per_s") == 1000.0 * tokens / *slowest,
           "slowest_tokens_per_s",
           "not that of time_ms");
    expect(row.at("fastest_tokens_per_s") == 1000.0 * tokens / *fastest,
           "fastest_tokens_per_s",
           "not that of time_ms");
    const json& peer = row.at("peer");
    if (peer.at("name").is_null()) {
      expect(peer.contains("reason"), "peer", "name is null without a reason");
    } else {
      const bool whole =
          peer.contains("version") && peer.contains("tokens_per_s") && peer.contains("ratio");
      expect(whole, "peer", "lacks version, tokens_per_s or ratio");
      if (whole)
        expect(peer["ratio"] == mine / peer["tokens_per_s"].get<double>(),
               "peer/ratio",
               "not that of the two rates");
    }
  }
  return faults;
}

// Clean means that the tool came to its end and found nothing, which its log must be there to show.
std::vector<std::string> sanitize_faults(const json& record) {
  std::vector<std::string> faults;
  std::size_t index = 0;
  for (const json& p : record.at("programs")) {
    const std::string where = "programs/" + std::to_string(index++) + "/";
    const std::string outcome = p.at("outcome");
    if (outcome != "findings" && p.at("findings").get<int>() > 0)
      faults.push_back(where + "findings: above 0 with outcome " + outcome);
    if (outcome != "not run" && !p.contains("log_sha256"))
      faults.push_back(where + "log_sha256: missing, outcome " + outcome + " needs a log");
  }
  return faults;
}

std::string subject_of(const json& record) {
  std::string schema = record.at("schema");
  if (schema == "assay-stack")
    return "stack, " + record.at("plan").at("body").at("numerics").get<std::string>() + " " +
           record.at("verdict").at("word").get<std::string>();
  if (schema == "assay-sanitize") {
    std::size_t clean = 0;
    for (const json& p : record.at("programs")) clean += p.at("outcome") == "clean" ? 1 : 0;
    return record.at("tool").get<std::string>() + " clean in " + std::to_string(clean) + " of " +
           std::to_string(record["programs"].size()) + " programs";
  }
  if (schema == "abg-result") {
    const json& plan = record.at("plan").at("body");
    return plan.at("op").get<std::string>() + "/" + plan.at("b").get<std::string>() + " " +
           record.at("verdict").at("word").get<std::string>();
  }
  if (record.contains("op") && record.contains("variant")) {
    return record["op"].get<std::string>() + "/" + record["variant"].get<std::string>() + " " +
           record.value("outcome", "");
  }
  return schema;
}

std::string sources_of(const json& record) {
  const std::string schema = record.at("schema");
  if (schema == "assay-parity") {
    const std::string op = record.at("op");
    const std::string variant = record.at("variant");
    const json& source = record.at("source");
    if (source.at("digest") == source_digest(op, variant)) return "current";
    const std::string moved = moved_sources(source.at("files"), op, variant);
    return "stale" + (moved.empty() ? "" : ": " + moved);
  }
  if (schema == "assay-stack") {
    for (const auto& [op, variant] : record.at("plan").at("body").at("members").items()) {
      const auto source = record.at("sources").find(op);
      if (source == record["sources"].end() ||
          *source != source_digest(op, variant.get<std::string>()))
        return "stale: " + op + "=" + variant.get<std::string>();
    }
    return "current";
  }
  if (schema != "abg-result") return "";
  const json& plan = record.at("plan").at("body");
  for (const json& arm : record.at("arms")) {
    const std::string variant = arm.at("variant");
    if (arm.at("source_digest") != source_digest(plan.at("op").get<std::string>(), variant))
      return "stale: " + variant;
  }
  return "current";
}

}  // namespace

std::vector<std::string> proven_faults(const ProvenSet& set,
                                       const std::map<std::string, json>& records) {
  std::vector<std::string> faults;
  for (const auto& [op, lanes] : set.ops) {
    for (const auto& [lane, e] : lanes) {
      const std::string where = "ops/" + op + "/" + lane + "/";
      const auto expect = [&](bool good, const std::string& key, const std::string& what) {
        if (!good) faults.push_back(where + key + ": " + what);
      };
      const auto record = [&](const char* key, const std::string& id, const char* schema) {
        const auto it = records.find(id);
        const bool found = it != records.end() && it->second.at("schema") == schema;
        expect(found, key, "no such record among those given: " + id.substr(0, 16));
        return found ? it->second : json();
      };
      const json parity = record("parity_record", e.parity_record, "assay-parity");
      if (!parity.is_null()) {
        expect(parity.at("outcome") == "pass", "parity_record", "did not pass");
        expect(parity.at("op") == op && parity.at("variant") == e.variant,
               "parity_record",
               "is of another variant");
        expect(parity.at("source").at("digest") == e.source_digest,
               "source_digest",
               "not that of the parity record");
      }
      const json ab = record("ab_record", e.ab_record, "abg-result");
      if (ab.is_null()) continue;
      const json& plan = ab.at("plan").at("body");
      expect(
          plan.at("op") == op && plan.at("b") == e.variant, "ab_record", "is of another variant");
      const std::string why = not_armed_because(ab);
      expect(why.empty(), "ab_record", why);
      expect(ab.at("scratch") == set.scratch, "ab_record", "scratch in one and not in the other");
      expect(ab.at("machine").at("card") == set.card, "ab_record", "is of another card");
      expect(ab.at("parity").at("record_sha256") == e.parity_record,
             "parity_record",
             "not the one that the A/B record rests on");
      for (const json& arm : ab.at("arms")) {
        if (arm.at("label") == "B")
          expect(arm.at("source_digest") == e.source_digest,
                 "source_digest",
                 "not that of the A/B record");
      }
      expect(ab.at("analysis").at("speedup") == e.speedup, "speedup", "not the A/B record's");
    }
  }
  for (const auto& [lane, s] : set.stacks) {
    const std::string where = "stacks/" + lane + "/";
    const auto it = records.find(s.record);
    if (it == records.end() || it->second.at("schema") != "assay-stack") {
      faults.push_back(where +
                       "record: no such record among those given: " + s.record.substr(0, 16));
      continue;
    }
    const json& r = it->second;
    if (r.at("plan").at("body").at("members") != json(s.members))
      faults.push_back(where + "members: not the record's");
    if (r.at("analysis").at("speedup") != s.speedup)
      faults.push_back(where + "speedup: not the record's");
    if (r.at("scratch") != set.scratch)
      faults.push_back(where + "record: scratch in one and not in the other");
  }
  return faults;
}

std::string peer_fault(const json& peer, const Plan& plan) {
  const auto text = [&](const char* key) {
    return peer.contains(key) && peer[key].is_string() ? peer[key].get<std::string>()
                                                       : std::string();
  };
  if (!peer.is_object() || !peer.contains("name")) return "peer: lacks the key name";
  if (peer["name"].is_null())
    return text("reason").empty() ? "peer: name is null without a reason" : "";
  if (text("name").empty()) return "peer/name: neither a name nor null";
  if (text("version").empty()) return "peer/version: missing";
  const std::string tier = text("tier");
  if (std::none_of(
          plan.tiers.begin(), plan.tiers.end(), [&](const PlanTier& t) { return t.id == tier; }))
    return "peer/tier: '" + tier + "' is no tier of the plan";
  if (!peer.contains("time_s") || !peer["time_s"].is_number() ||
      !(peer["time_s"].get<double>() > 0.0))
    return "peer/time_s: not a time above 0";
  return "";
}

std::vector<std::string> record_faults(const json& record, const RecordJudge& judge) {
  std::vector<std::string> faults;
  const std::string schema = record.at("schema");
  if (schema == "abg-result") faults = ab_faults(record);
  if (schema == "assay-card-probe") {
    if (std::string fault = card_probe_fault(record.at("card_probe")); !fault.empty())
      faults.push_back(std::move(fault));
  }
  if (schema == "assay-sanitize") faults = sanitize_faults(record);
  if (schema == "assay-probe") faults = probe_faults(record);
  if (schema == "assay-bench-model") faults = model_speed_faults(record);
  if (schema == "assay-stack") faults = stack_faults(record);
  if (schema == "assay-calibration") faults = calibration_faults(record);
  if (judge) {
    const auto more = judge(record);
    faults.insert(faults.end(), more.begin(), more.end());
  }
  // Last, so that the message names the altered field first.
  if (record.value("record_sha256", "") != record_digest(record))
    faults.push_back("record_sha256: differs from the record's content");
  return faults;
}

std::vector<VerifiedRecord> verify_records(std::string_view text,
                                           const std::string& name,
                                           const RecordJudge& judge) {
  std::vector<VerifiedRecord> out;
  int line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    ++line_number;
    const auto began = std::chrono::steady_clock::now();
    const auto refuse = [&](std::size_t offset, const std::string& why) {
      throw InputError(name + ": line " + std::to_string(line_number) + ", byte " +
                       std::to_string(offset) + ": " + why);
    };
    const std::size_t newline = text.find('\n', begin);
    if (newline == std::string_view::npos)
      refuse(text.size(), "the last line is cut short (no newline)");
    json record;
    try {
      record = json::parse(text.substr(begin, newline - begin));
    } catch (const json::parse_error& e) {
      refuse(begin + (e.byte > 0 ? e.byte - 1 : 0), "not JSON");
    } catch (const json::out_of_range&) {
      refuse(begin, "a number is out of range");
    }
    if (!record.is_object() || !record.contains("schema") || !record["schema"].is_string())
      refuse(begin, "not a record: lacks the key \"schema\"");
    const json* schema = schema_named(record["schema"].get_ref<const std::string&>());
    if (schema == nullptr) {
      std::string names;
      for (const auto& known : schema_names()) names += (names.empty() ? "" : ", ") + known;
      refuse(begin, "unknown schema " + record["schema"].dump() + ": known are " + names);
    }
    // A newer version is named as such, before its new keys are reported as unknown.
    const json& version = schema->at("properties").at("schema_version");
    if (version.contains("const") && record.contains("schema_version") &&
        record["schema_version"] != version["const"]) {
      refuse(begin,
             "schema_version " + record["schema_version"].dump() + " of " +
                 record["schema"].dump() + ": this build reads " + version["const"].dump());
    }
    if (const auto faults = schema_faults(*schema, record); !faults.empty())
      refuse(begin, faults.front());
    VerifiedRecord v;
    v.line = line_number;
    v.schema = record["schema"];
    v.id = record_id(record);
    v.subject = subject_of(record);
    v.scratch = record.value("scratch", false);
    v.sources = sources_of(record);
    v.faults = record_faults(record, judge);
    // Two texts can hold one value (a digit beyond a double's precision); only one of them was written by the tools.
    if (text.substr(begin, newline - begin) != canonical_json(record)) {
      v.faults.push_back("the line is not the canonical text of its record");
    }
    v.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    out.push_back(std::move(v));
    begin = newline + 1;
  }
  return out;
}

}  // namespace assay
