// The ledger: one line for every variant that was ever timed against a stock, written before its first run, so that an
// abandoned try counts as well. Append only; two writers do not mix lines (one write each).
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "bench/plan.h"
#include "bench/stack.h"

namespace assay {

struct LedgerLine {
  std::string event;  // "started", "finished", "refused"
  std::string op;
  std::string a;
  std::string b;
  std::string stage;  // of the plan
  std::string plan_sha256;
  std::string lane;
  std::string card;
  std::string record;   // finished: the A/B record's hash; else empty
  std::string verdict;  // finished: the verdict's word; refused: why
};
// Appends to <folder of the card>/ledger_<backend>.jsonl (schema assay-ledger).
void append_ledger(const std::string& path, const LedgerLine& line);
LedgerLine ledger_line(const Plan& plan, const std::string& card, const std::string& event);
// Rounds of a whole engine: a line for every member, each of which was timed against stock.
std::vector<LedgerLine> ledger_lines(const StackPlan& plan,
                                     const std::string& card,
                                     const std::string& event);
// The same lines when the rounds have ended: the record, and its word for the members that it keeps.
std::vector<LedgerLine> finished_lines(const StackPlan& plan,
                                       const std::string& card,
                                       const nlohmann::json& record);
// results/<card>/ledger_<backend>.jsonl, or results/scratch/ledger_<backend>.jsonl.
std::string ledger_path(const std::string& root,
                        const std::string& card,
                        const std::string& backend,
                        bool scratch);

// Counts over a ledger: how many members were tried against one stock, screened, confirmed, adopted, and left unfinished.
struct LedgerCount {
  int tried = 0;  // distinct (b, plan) started
  int screened = 0;
  int confirmed = 0;
  int claimed = 0;    // ADOPT or STACK-MEMBER
  int abandoned = 0;  // started, never finished
};
LedgerCount count_ledger(const std::vector<nlohmann::json>& lines,
                         const std::string& op,
                         const std::string& a);

}  // namespace assay
