#include "bench/ledger.h"

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "kernels/base/proven.h"
#include "kernels/base/record.h"

namespace assay {

using nlohmann::json;

void append_ledger(const std::string& path, const LedgerLine& l) {
  json line{{"schema", "assay-ledger"},
            {"schema_version", "1.0.0"},
            {"recorded_utc", utc_now()},
            {"event", l.event},
            {"op", l.op},
            {"a", l.a},
            {"b", l.b},
            {"stage", l.stage},
            {"plan_sha256", l.plan_sha256},
            {"lane", l.lane},
            {"card", l.card},
            {"record", l.record},
            {"verdict", l.verdict}};
  append_record(path, line);
}

LedgerLine ledger_line(const Plan& plan, const std::string& card, const std::string& event) {
  return {event, plan.op, plan.a, plan.b, plan.stage, plan_sha256(plan), plan.lane, card, "", ""};
}

std::vector<LedgerLine> ledger_lines(const StackPlan& plan,
                                     const std::string& card,
                                     const std::string& event) {
  std::vector<LedgerLine> lines;
  const std::string hash = stack_plan_sha256(plan);
  for (const auto& [op, variant] : plan.members)
    lines.push_back({event, op, "stock", variant, "confirm", hash, plan.lane, card, "", ""});
  return lines;
}

std::vector<LedgerLine> finished_lines(const StackPlan& plan,
                                       const std::string& card,
                                       const json& record) {
  const json& verdict = record.at("verdict");
  const json& dropped = verdict.at("dropped");
  auto lines = ledger_lines(plan, card, "finished");
  for (LedgerLine& line : lines) {
    line.record = record.at("record_sha256");
    const bool kept = std::find(dropped.begin(), dropped.end(), line.op) == dropped.end();
    line.verdict = kept ? verdict.at("word").get<std::string>() : "dropped";
  }
  return lines;
}

std::string ledger_path(const std::string& root,
                        const std::string& card,
                        const std::string& backend,
                        bool scratch) {
  return root + "/" + (scratch ? "scratch" : card_slug(card)) + "/ledger_" + backend + ".jsonl";
}

LedgerCount count_ledger(const std::vector<json>& lines,
                         const std::string& op,
                         const std::string& a) {
  std::set<std::pair<std::string, std::string>> started;
  std::map<std::pair<std::string, std::string>, json> finished;
  for (const json& l : lines) {
    if (l.at("schema") != "assay-ledger" || l.at("op") != op || l.at("a") != a || l.at("b") == a)
      continue;
    const std::pair<std::string, std::string> key{l.at("b"), l.at("plan_sha256")};
    if (l.at("event") == "started") started.insert(key);
    if (l.at("event") == "finished") finished[key] = l;
  }
  LedgerCount c;
  c.tried = static_cast<int>(started.size());
  for (const auto& key : started) c.abandoned += finished.contains(key) ? 0 : 1;
  for (const auto& [key, l] : finished) {
    c.screened += l.at("stage") == "screen" ? 1 : 0;
    c.confirmed += l.at("stage") == "confirm" ? 1 : 0;
    c.claimed += l.at("verdict") == "ADOPT" || l.at("verdict") == "STACK-MEMBER" ? 1 : 0;
  }
  return c;
}

}  // namespace assay
