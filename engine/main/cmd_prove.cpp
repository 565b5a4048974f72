// assay prove: parity, screening and confirmation of every variant of this machine, and the proven set that follows.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <span>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "bench/analysis.h"
#include "bench/campaign.h"
#include "bench/ledger.h"
#include "bench/needles.h"
#include "bench/process.h"
#include "bench/tiers.h"
#include "engine/main/ab_gates.h"
#include "engine/main/command.h"
#include "engine/main/engine_rounds.h"
#include "kernels/base/build_id.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/program.h"
#include "kernels/base/proven.h"
#include "kernels/base/record.h"

namespace assay {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kConfirmAtMost = 3;  // bench.md 1.4
constexpr int kScreeningPairs = 8;

struct Options {
  std::string backend = "host";
  std::vector<std::string> ops;
  std::string out = "results";
  std::string json_path;
  double budget_s = 0.0;  // 0: none
  std::size_t confirm = kConfirmAtMost;
  int pairs = 0;  // 0: 12, 16 or 24 as the noise asks
  int threads = 1;
  int blocks = 30;
  int screen_blocks = 10;
  double bar = 1.015;
  bool scratch = false;
  std::string regime;
  int block_us = 2000;
  std::string model;  // of the stack rounds; empty: the shipped one
  std::vector<std::string> stack_tiers{"tiny", "read_128"};
  std::vector<std::string> needles{"needle_512"};
  int stack_rounds = 12;  // at least; 0: no stack
};

// The stack of one numerics lane and what its rounds said.
struct StackOutcome {
  std::string lane;
  json drop_one;  // record; null: not run
  json whole;     // fresh rounds of what was kept; null when nothing was dropped
};

// One variant in one numerics lane, and what became of it.
struct Member {
  const OpInfo* op = nullptr;
  std::string lane;  // key of the proven set
  std::string variant;
  Plan screen;
  json parity;        // the gate's summary; null: not yet
  json screening;     // A/B record; null: none
  json confirmation;  // A/B record; null: none
  std::string note;   // why it is not in the set
  bool armed = false;
};

std::string text_of(const Member& m) { return m.op->name + " " + m.lane + " " + m.variant; }

// One campaign at a time in a results folder: two would disturb each other's timing and both make the same comparison.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    const bool busy = errno == EWOULDBLOCK;
    const std::string why = std::strerror(errno);
    if (fd_ >= 0) ::close(fd_);
    throw Error(Exit::kCheckFailed,
                folder + (busy ? ": another campaign is running there" : ": cannot lock: " + why));
  }
  ~FolderLock() { ::close(fd_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

class Campaign {
 public:
  explicit Campaign(const Options& options)
      : o_(options),
        device_(device_of(options.backend)),
        now_(standing_now(options.scratch, device_)),
        folder_(results_folder(o_.out, now_.card, o_.scratch)),
        set_path_(folder_ + "/proven_" + o_.backend + ".json") {
    list_members();
    prepare_out();
    inherit_set();
  }

  // False when the budget ended before the work did.
  bool run() {
    for (std::size_t begin = 0; begin < members_.size();) {
      std::size_t end = begin;
      while (end < members_.size() && members_[end].op == members_[begin].op) ++end;
      const std::span<Member> family(&members_[begin], end - begin);
      if (!screen(family) || !confirm(family)) return false;
      adopt(family);
      begin = end;
    }
    if (o_.stack_rounds == 0) return true;
    for (const char* lane : {"fast", "exact"}) {
      if (!stack(lane)) return false;
    }
    return true;
  }
  const std::vector<StackOutcome>& stacks() const { return stacks_; }

  const std::vector<Member>& members() const { return members_; }
  const std::vector<std::string>& untimed() const { return untimed_; }
  const ProvenSet& set() const { return set_; }
  const std::string& set_path() const { return set_path_; }
  int reused() const { return reused_; }
  double elapsed_s() const {
    return std::chrono::duration<double>(Clock::now() - started_).count();
  }

 private:
  void list_members() {
    std::vector<const OpInfo*> ops;
    for (const OpInfo* op : all_ops()) ops.push_back(&op_of(op->name, o_.backend));
    if (!o_.ops.empty()) {
      ops.clear();
      for (const std::string& name : o_.ops) {
        const OpInfo* op = &op_of(name, o_.backend);
        if (std::find(ops.begin(), ops.end(), op) == ops.end()) ops.push_back(op);
      }
    }
    for (const OpInfo* op : ops) {
      const std::size_t before = members_.size() + untimed_.size();
      const auto lanes = lanes_of(*op);
      for (const VariantInfo& v : op->variants) {
        if (v.stage == Stage::kStock || !declared(v)) continue;
        if (lanes.empty())
          untimed_.push_back(op->name + " " + v.name + ": the op has no cases of its own to time");
      }
      for (const std::string& lane : lanes) {
        for (const VariantInfo& v : op->variants) {
          if (v.stage == Stage::kStock || !declared(v)) continue;
          add_member(*op, lane, v);
        }
      }
      if (!o_.ops.empty() && members_.size() + untimed_.size() == before)
        untimed_.push_back(op->name + ": no variant for " + o_.backend);
    }
    if (members_.empty()) {
      throw HardwareError("nothing to prove here" +
                          (untimed_.empty() ? std::string() : ": " + untimed_.front()));
    }
  }

  bool declared(const VariantInfo& v) const {
    return device_.backend == Backend::kHost ? v.host_declared : v.cuda_declared;
  }

  void add_member(const OpInfo& op, const std::string& lane, const VariantInfo& variant) {
    PlanFlags flags;
    flags.op = op.name;
    flags.b = variant.name;
    flags.pairs = kScreeningPairs;
    flags.threads = o_.threads;
    flags.blocks = o_.screen_blocks;
    flags.bar = o_.bar;
    flags.backend = o_.backend;
    flags.regime = o_.regime;
    flags.block_us = o_.block_us;
    try {
      for (const PlanTier& t :
           default_tiers(op, flags.a, flags.b, lane == "any" ? "" : lane, device_))
        flags.tiers.push_back(t.id);
    } catch (const UserError& e) {
      untimed_.emplace_back(e.what());  // no case of this lane that it takes here
      return;
    }
    Member m{&op, lane, variant.name, plan_from_flags(flags), {}, {}, {}, "", false};
    m.screen.stage = "screen";
    Plan confirmation = m.screen;
    confirmation.blocks = o_.blocks;
    check_plan(confirmation);  // now, and not after the screening
    if (variant.stage == Stage::kRejected) m.note = "its stage is rejected: never in the set";
    members_.push_back(std::move(m));
  }

  // Fails before the first run and not after an hour of them: a folder that cannot be written, or a file there that
  // `verify` would refuse, to which nothing may be appended.
  void prepare_out() {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error || ::access(folder_.c_str(), W_OK) != 0) {
      throw Error(Exit::kCheckFailed,
                  "--out " + o_.out + ": cannot write to " + folder_ + ": " +
                      (error ? error.message() : std::strerror(errno)));
    }
    const std::string ledger = ledger_path(o_.out, now_.card, o_.backend, o_.scratch);
    const std::string card_folder = fs::path(ledger).parent_path().string();
    lock_.emplace(card_folder);
    for (const std::string& file : record_files(card_folder)) {
      try {
        for (json& r : read_records(file)) {
          // Records of whole runs (nightly, gpu_check) say their build in words.
          if (r.contains("build") && r["build"].is_object() &&
              r["build"].at("commit") == now_.commit)
            stored_.push_back(std::move(r));
        }
      } catch (const InputError& e) {
        if (file == ledger || fs::path(file).parent_path() == folder_)
          throw InputError(std::string(e.what()) + "; move it away to go on");
        ASSAY_LOG(warn, "passed over {}", e.what());
      }
    }
  }

  // Ops that this campaign does not reach keep the entries they have; those with moved sources are named when armed.
  void inherit_set() {
    std::vector<std::string> notes;
    std::string path = set_path_;
    if (!o_.scratch) path = newest_proven(o_.out, device_, notes);
    for (const std::string& note : notes) ASSAY_LOG(warn, "{}", note);
    if (!path.empty() && fs::exists(path)) set_ = parse_proven(read_file(path), path);
    set_.card = now_.card;
    set_.backend = o_.backend;
    set_.cuda = build_id().cuda;
    set_.commit = now_.commit;
    set_.scratch = o_.scratch;
  }

  // --- one op ---
  bool screen(std::span<Member> family) {
    for (Member& m : family) {
      m.parity = parity_of(m);
      if (m.parity.at("outcome") != "pass") m.note = "parity failed";
      if (m.note.empty() && needs_no_screening(m, family)) continue;
      if (!compare(m, m.screen, AaPool{}, m.screening)) return false;
    }
    return true;
  }

  // Screening chooses; where a lane has one variant there is nothing to choose, and time on a card is short.
  bool needs_no_screening(const Member& m, std::span<const Member> family) const {
    return device_.backend == Backend::kCuda &&
           std::count_if(family.begin(), family.end(), [&](const Member& other) {
             return other.lane == m.lane;
           }) == 1;
  }

  bool confirm(std::span<Member> family) {
    std::vector<Member*> chosen;
    for (const std::string& lane : lanes_of(*family.front().op)) {
      std::vector<Member*> members;
      std::vector<Screened> screened;
      for (Member& m : family) {
        if (m.lane != lane || !m.note.empty()) continue;
        members.push_back(&m);
        screened.push_back(needs_no_screening(m, family) ? Screened{m.variant, true, 1.0}
                                                         : screened_of(m));
      }
      const auto best = candidates(screened, o_.confirm);
      for (Member* m : members) m->note = "not confirmed: behind the best in screening";
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (!screened[i].sound)
          members[i]->note = not_armed_because(members[i]->screening);
        else if (screened[i].estimate <= 0.0)
          members[i]->note = "not confirmed: no gain in screening";
      }
      for (const std::size_t i : best) {
        members[i]->note.clear();
        chosen.push_back(members[i]);
      }
    }
    // The claims of one op are one family, whatever lane they are of. Each plan rests on the screenings alone: one that
    // looked at earlier confirmations would differ between a campaign that was interrupted and one that was not.
    for (Member* m : chosen) {
      const AaPool pool = screening_pool(family, m->screen);
      auto plan = confirmation_plan(m->screen, static_cast<int>(chosen.size()), pool.d, o_.pairs);
      if (!plan) {
        m->note = "not confirmed: too noisy here even for a bar of 20 %";
        continue;
      }
      plan->blocks = o_.blocks;
      if (plan->bar > o_.bar)
        ASSAY_LOG(info, "{}: this machine's noise asks for a bar of {}", text_of(*m), plan->bar);
      if (!compare(*m, *plan, pool, m->confirmation)) return false;
    }
    return true;
  }

  // Screening chose the order; the first that its own confirmation bears out is armed, so that no estimate of a
  // confirmation is picked for being high.
  void adopt(std::span<Member> family) {
    set_.ops.erase(family.front().op->name);
    std::vector<Member*> order;
    for (Member& m : family) {
      if (!m.confirmation.is_null()) order.push_back(&m);
    }
    std::stable_sort(order.begin(), order.end(), [](const Member* x, const Member* y) {
      return estimate_of(x->screening) > estimate_of(y->screening);
    });
    for (Member* m : order) {
      m->note = not_armed_because(m->confirmation);
      if (!m->note.empty()) continue;
      auto& lanes = set_.ops[m->op->name];
      const auto winner = lanes.find(m->lane);
      if (winner != lanes.end()) {
        m->note = "stands, behind " + winner->second.variant + " in screening";
        continue;
      }
      const json source = source_json(m->op->name, m->variant);
      lanes[m->lane] = {m->variant,
                        m->confirmation.at("parity").at("record_sha256"),
                        m->confirmation.at("record_sha256"),
                        source.at("digest"),
                        source.at("files").get<std::map<std::string, std::string>>(),
                        m->confirmation.at("analysis").at("speedup")};
      m->armed = true;
    }
    if (set_.ops.contains(family.front().op->name) && set_.ops[family.front().op->name].empty())
      set_.ops.erase(family.front().op->name);
    set_.recorded_utc = utc_now();
    write_file_atomic(set_path_, proven_text(set_) + "\n");
  }

  // --- all members together ---
  // Winners of one lane whose sources are this build's: what `--profile proven` would arm.
  std::map<std::string, std::string> lane_members(const std::string& lane) const {
    std::map<std::string, std::string> members;
    for (const auto& [op, lanes] : set_.ops) {
      for (const std::string& key : {lane, std::string("any")}) {
        const auto it = lanes.find(key);
        if (it != lanes.end() && it->second.source_digest == source_digest(op, it->second.variant))
          members[op] = it->second.variant;
      }
    }
    return members;
  }

  StackPlan stack_plan(const std::string& lane,
                       const std::map<std::string, std::string>& members,
                       const std::string& question) const {
    StackPlan plan;
    plan.members = members;
    plan.question = question;
    plan.backend = o_.backend;
    plan.numerics = lane;
    plan.threads = o_.threads;
    plan.model = model_json(model_);
    for (const std::string& id : o_.stack_tiers) {
      const EngineTier& tier = engine_tier(id);
      plan.tiers.push_back(
          {id, tier.endpoint, 1.0 / static_cast<double>(o_.stack_tiers.size()), true});
    }
    if (o_.needles != std::vector<std::string>{"none"}) plan.needles = o_.needles;
    plan.repeat = 1;
    plan.rounds = rounds_for(static_cast<int>(stack_arms(plan).size()), o_.stack_rounds);
    return plan;
  }

  // The stored rounds of this plan, or new ones. False when the budget has no room for them.
  bool rounds(const StackPlan& plan, json& record) {
    if (const json* stored = standing_stack(stored_, plan, now_)) {
      ++reused_;
      record = *stored;
      return true;
    }
    double left = 0.0;
    if (o_.budget_s > 0.0) {
      left = o_.budget_s - elapsed_s();
      if (left <= 0.0) return false;
    }
    ASSAY_LOG(info,
              "stack, {}: {} rounds of {} arms",
              plan.numerics,
              plan.rounds,
              stack_arms(plan).size());
    const auto found = run_engine_rounds(plan, {model_, o_.out, o_.scratch, left});
    if (!found) return false;
    record = *found;
    return true;
  }

  // All winners of the lane in a whole engine; one whose absence does not hurt leaves the set, and what is left is measured
  // again on fresh rounds.
  bool stack(const std::string& lane) {
    auto members = lane_members(lane);
    if (model_.empty()) model_ = o_.model.empty() ? shipped_model() : o_.model;
    if (members.empty() || model_.empty()) return true;
    StackOutcome& outcome = stacks_.emplace_back();
    outcome.lane = lane;
    if (!rounds(stack_plan(lane, members, "drop_one"), outcome.drop_one)) return false;
    const json& dropped = outcome.drop_one.at("verdict").at("dropped");
    const json* last = &outcome.drop_one;
    if (!dropped.empty()) {
      for (const json& op : dropped) members.erase(op.get<std::string>());
      if (!members.empty()) {
        if (!rounds(stack_plan(lane, members, "whole"), outcome.whole)) return false;
        last = &outcome.whole;
      }
    }
    for (const json& op : dropped) drop(op, lane);
    set_.stacks.erase(lane);
    const json& word = last->at("verdict").at("word");
    if (!members.empty() && (word == "STACK-MEMBER" || word == "ADOPT")) {
      set_.stacks[lane] = {last->at("record_sha256"), members, last->at("analysis").at("speedup")};
    }
    set_.recorded_utc = utc_now();
    write_file_atomic(set_path_, proven_text(set_) + "\n");
    return true;
  }

  void drop(const std::string& op, const std::string& lane) {
    const auto it = set_.ops.find(op);
    if (it == set_.ops.end()) return;
    it->second.erase(lane);
    it->second.erase("any");
    if (it->second.empty()) set_.ops.erase(it);
    for (Member& m : members_) {
      if (m.op->name != op || (m.lane != lane && m.lane != "any") || !m.armed) continue;
      m.armed = false;
      m.note = "dropped: its absence does not hurt the whole engine";
    }
  }

  // --- steps ---
  json parity_of(const Member& m) {
    for (const Member& other : members_) {
      if (other.op == m.op && other.variant == m.variant && !other.parity.is_null())
        return other.parity;
    }
    if (const json* stored = standing_parity(stored_, m.op->name, m.variant, now_))
      return parity_gate_of(*stored).summary;
    ASSAY_LOG(info, "{} {}: parity", m.op->name, m.variant);
    const ParityGate gate = run_parity_gate(*m.op, m.variant, o_.backend, folder_);
    for (const std::string& fault : gate.faults) ASSAY_LOG(warn, "parity: {}", fault);
    return gate.summary;
  }

  // The stored record of this plan, or a new one. False when the budget has no room for it.
  bool compare(Member& m, const Plan& plan, const AaPool& pool, json& record) {
    const std::string what = plan.stage == "screen" ? "screening" : "confirmation";
    if (const json* stored = first_standing(stored_, plan, now_)) {
      ++reused_;
      record = *stored;
      note_cost(plan, sitting_seconds(record));
      ASSAY_LOG(info, "{}: {} is record {}", text_of(m), what, record_id(record));
      return true;
    }
    if (m.note == "parity failed") {
      LedgerLine line = ledger_line(plan, now_.card, "refused");
      line.verdict = m.note;
      append_ledger(ledger_path(o_.out, now_.card, o_.backend, o_.scratch), line);
      return true;
    }
    const double cost = cost_s(plan);
    if (o_.budget_s > 0.0 && elapsed_s() + cost > o_.budget_s) return false;
    ASSAY_LOG(info, "{}: {}, {} pairs{}", text_of(m), what, plan.pairs, time_left(cost));
    const auto began = Clock::now();
    std::string path;
    ParityGate gate;
    gate.summary = m.parity;
    record = run_sitting(plan, *m.op, gate, {o_.out, o_.scratch, "", pool}, path);
    note_cost(plan, std::chrono::duration<double>(Clock::now() - began).count());
    return true;
  }

  static double estimate_of(const json& record) {
    if (record.is_null()) return 0.0;
    const json& estimate = record.at("analysis").at("estimate");
    return estimate.is_null() ? 0.0 : estimate.get<double>();
  }

  static Screened screened_of(const Member& m) {
    const std::string word = m.screening.at("verdict").at("word");
    return {m.variant, word != "REJECT" && word != "INVALID", estimate_of(m.screening)};
  }

  AaPool screening_pool(std::span<const Member> family, const Plan& plan) const {
    const json like{{"machine", machine_json(device_)}, {"plan", plan_json(plan)}};
    AaPool pool;
    for (const Member& m : family) {
      if (m.screening.is_null()) continue;
      const auto d = aa_differences(m.screening, like);
      if (d.empty()) continue;
      pool.d.insert(pool.d.end(), d.begin(), d.end());
      pool.records.push_back(record_id(m.screening));
    }
    return pool;
  }

  // --- time ---
  static double work_of(const Plan& p) {
    const int pairs = p.burn_in_pairs + p.pairs + p.pairs / p.aa_every;
    return 2.0 * pairs * p.blocks * static_cast<double>(p.tiers.size());
  }
  void note_cost(const Plan& plan, double seconds) {
    for (const std::string& op : {plan.op, std::string()}) {
      seconds_[op].first += seconds;
      seconds_[op].second += work_of(plan);
    }
  }
  // As far as the comparisons so far tell, those of the same op if there are any; 0 before the first.
  double cost_s(const Plan& plan) const {
    auto it = seconds_.find(plan.op);
    if (it == seconds_.end()) it = seconds_.find("");
    return it == seconds_.end() ? 0.0 : it->second.first / it->second.second * work_of(plan);
  }
  std::string time_left(double cost) const {
    if (cost <= 0.0) return "";
    double left = 0.0;
    for (const Member& m : members_) {
      Plan confirmation = m.screen;
      confirmation.pairs = o_.pairs > 0 ? o_.pairs : 12;
      confirmation.blocks = o_.blocks;
      if (m.screening.is_null()) left += cost_s(m.screen);
      if (m.confirmation.is_null() && m.note.empty()) left += cost_s(confirmation);
    }
    std::string text =
        fmt::format(", about {:.0f} s; all that is left about {:.0f} min", cost, left / 60.0);
    if (o_.budget_s > 0.0)
      text += fmt::format(", {:.0f} min of the budget", (o_.budget_s - elapsed_s()) / 60.0);
    return text;
  }

  const Options& o_;
  const DeviceInfo& device_;
  Standing now_;
  std::string folder_;
  std::string set_path_;
  std::optional<FolderLock> lock_;
  Clock::time_point started_ = Clock::now();
  std::vector<Member> members_;
  std::vector<std::string> untimed_;
  std::vector<json> stored_;
  ProvenSet set_;
  std::map<std::string, std::pair<double, double>> seconds_;  // op, "" for all -> seconds, work
  int reused_ = 0;
  std::string model_;
  std::vector<StackOutcome> stacks_;
};

json record_summary(const json& record) {
  if (record.is_null()) return nullptr;
  const json& a = record.at("analysis");
  return {{"record", record.at("record_sha256")},
          {"word", record.at("verdict").at("word")},
          {"speedup", a.at("speedup")},
          {"interval", a.at("interval")},
          {"pairs", a.at("d").size()},
          {"family_size", a.at("family_size")}};
}

json document(const Campaign& campaign, bool complete) {
  json members = json::array();
  for (const Member& m : campaign.members()) {
    members.push_back({{"op", m.op->name},
                       {"lane", m.lane},
                       {"variant", m.variant},
                       {"parity", m.parity},
                       {"screening", record_summary(m.screening)},
                       {"confirmation", record_summary(m.confirmation)},
                       {"in_set", m.armed},
                       {"note", m.note}});
  }
  json stacks = json::array();
  for (const StackOutcome& s : campaign.stacks()) {
    const auto brief = [](const json& r) {
      return r.is_null() ? json()
                         : json{{"record", r.at("record_sha256")},
                                {"verdict", r.at("verdict")},
                                {"speedup", r.at("analysis").at("speedup")},
                                {"interval", r.at("analysis").at("interval")}};
    };
    stacks.push_back(
        {{"lane", s.lane}, {"drop_one", brief(s.drop_one)}, {"whole", brief(s.whole)}});
  }
  return {{"schema", "assay-prove"},
          {"schema_version", 1},
          {"build", build_json()},
          {"card", campaign.set().card},
          {"complete", complete},
          {"elapsed_s", campaign.elapsed_s()},
          {"reused_records", campaign.reused()},
          {"members", members},
          {"stacks", stacks},
          {"untimed", campaign.untimed()},
          {"proven_set", campaign.set_path()}};
}

std::string speed_of(const json& record) {
  if (record.is_null() || record.at("analysis").at("speedup").is_null()) return "-";
  std::string text = fmt::format("x{:.3f}", record["analysis"]["speedup"].get<double>());
  const json& interval = record["analysis"].at("interval");
  if (!interval.is_null() && record.at("plan").at("body").at("stage") == "confirm") {
    text += fmt::format(" [{:.3f}, {:.3f}]",
                        std::exp(interval[0].get<double>()),
                        std::exp(interval[1].get<double>()));
  }
  return text;
}

void print_answer(const Campaign& campaign, bool complete, bool scratch) {
  if (scratch) std::cout << "SCRATCH, not citable and armed only by name.\n";
  std::cout << fmt::format("{:<18}{:<7}{:<13}{:<8}{:<11}{:<28}{}\n",
                           "op",
                           "lane",
                           "variant",
                           "parity",
                           "screened",
                           "confirmed",
                           "in the set");
  for (const Member& m : campaign.members()) {
    std::cout << fmt::format("{:<18}{:<7}{:<13}{:<8}{:<11}{:<28}{}\n",
                             m.op->name,
                             m.lane,
                             m.variant,
                             m.parity.is_null() ? "-" : m.parity.at("outcome").get<std::string>(),
                             speed_of(m.screening),
                             speed_of(m.confirmation),
                             m.armed ? "yes" : (m.note.empty() ? "not yet" : "no: " + m.note));
  }
  for (const StackOutcome& s : campaign.stacks()) {
    for (const json* r : {&s.drop_one, &s.whole}) {
      if (!r->is_null()) std::cout << "stack, " << s.lane << ": " << stack_sentence(*r) << '\n';
    }
  }
  for (const std::string& text : campaign.untimed()) std::cout << "not timed: " << text << '\n';
  std::cout << "set " << campaign.set_path();
  if (campaign.reused() > 0)
    std::cout << ", " << campaign.reused() << " finished comparisons of earlier runs used";
  std::cout << '\n';
  if (!complete)
    std::cout << "the budget ended first: the same command goes on where this one stopped\n";
}

int run(int argc, char** argv) {
  Options o;
  CommandLine app(
      "Proves variants against stock on this machine: parity, a screening of all (no claims), a "
      "confirmation of the best with fresh data, and the proven set of what won. Records of losers "
      "are kept. Interrupted, the same command goes on where it stopped: a finished comparison of "
      "this build and plan is never run again.",
      "assay prove",
      "assay prove --ops gemv_quant,gemm_quant --budget-s 1200");
  app.add_option("--backend", o.backend, "host, cuda").show_default();
  app.add_option("--ops", o.ops, "ops to prove, e.g. a,b; default: all with variants")
      .delimiter(',');
  app.add_option(
      "--budget-s", o.budget_s, "start no comparison that would end later; default: none");
  app.add_option("--confirm", o.confirm, "variants of an op and lane to confirm, 1..3")
      .show_default();
  app.add_option(
      "--pairs", o.pairs, "pairs of a confirmation; default: 12, 16 or 24, as the noise asks");
  app.add_option("--blocks", o.blocks, "timed blocks a start when confirming").show_default();
  app.add_option("--screen-blocks", o.screen_blocks, "the same when screening").show_default();
  app.add_option("--block-us", o.block_us, "least work in a timed block").show_default();
  app.add_option("--regime",
                 o.regime,
                 "hot, cold-rotate, cold-flush (host); default: hot on the host, else as met");
  app.add_option("--bar", o.bar, "smallest speed-up of interest").show_default();
  app.add_option("--threads", o.threads, "host threads of each arm").show_default();
  app.add_option("--stack-rounds",
                 o.stack_rounds,
                 "least rounds of the whole engine with all winners and without each; 0: none")
      .show_default();
  app.add_option("--stack-tiers", o.stack_tiers, "workloads of those rounds (bench/tiers.h)")
      .delimiter(',');
  app.add_option("--needles", o.needles, "needle checks before those rounds, or none")
      .delimiter(',')
      .show_default();
  app.add_option("--model", o.model, "model of those rounds; default: the shipped one");
  app.add_option("--out", o.out, "results folder").show_default();
  app.add_flag("--scratch", o.scratch, "allow a dirty tree; watermarked, never armed by `proven`");
  app.add_option("--json", o.json_path, "write the outcome as JSON to PATH, or to stdout for -");
  app.parse(argc, argv);
  if (o.backend != "host" && o.backend != "cuda")
    throw UserError("--backend '" + o.backend + "': valid are host, cuda");
  if (o.confirm < 1 || o.confirm > kConfirmAtMost)
    throw UserError("--confirm " + std::to_string(o.confirm) + ": 1 to 3");
  if (o.pairs != 0 && (o.pairs < 8 || o.pairs > 60 || o.pairs % 2 != 0))
    throw UserError("--pairs " + std::to_string(o.pairs) + ": an even number from 8 to 60");
  if (!(o.budget_s >= 0.0)) throw UserError("--budget-s: seconds, at least 0");
  if (o.stack_rounds != 0 && (o.stack_rounds < 8 || o.stack_rounds > 60))
    throw UserError("--stack-rounds " + std::to_string(o.stack_rounds) + ": 0, or 8 to 60");
  for (const std::string& id : o.stack_tiers) engine_tier(id);  // now, and not after the campaign
  if (o.needles != std::vector<std::string>{"none"}) {
    for (const std::string& id : o.needles) needle_check(id);
  }
  if (!o.model.empty() && !fs::is_regular_file(o.model))
    throw InputError("--model " + o.model + ": no such file");
  require_clean(o.scratch, o.backend);

  Campaign campaign(o);
  const bool complete = campaign.run();
  write_json(o.json_path, document(campaign, complete).dump());
  if (o.json_path != "-") print_answer(campaign, complete, o.scratch);
  const bool failed =
      std::any_of(campaign.members().begin(), campaign.members().end(), [](const Member& m) {
        return !m.parity.is_null() && m.parity.at("outcome") != "pass";
      });
  return static_cast<int>(failed ? Exit::kCheckFailed : Exit::kGood);
}

}  // namespace

extern const Command command_prove;
const Command command_prove{"prove", "lab", "parity, screening, confirmation, proven set", run};

}  // namespace assay
