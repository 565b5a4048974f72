#include "bench/ab.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>
#include <sys/utsname.h>

#include "bench/analysis.h"
#include "bench/child.h"
#include "bench/cold.h"
#include "bench/harness.h"
#include "bench/stats.h"
#include "bench/timing_cases.h"
#include "kernels/base/build_id.h"
#include "kernels/base/card_probe.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/log.h"
#include "kernels/base/nvml.h"
#include "kernels/base/proven.h"
#include "kernels/base/record.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

using nlohmann::json;

// A check costs a reference run in the parent, so every tenth block, drawn after it ran; the last when none was drawn.
constexpr std::uint64_t kCheckOneIn = 10;
constexpr int kAuditGroups = 32;
constexpr int kMeasureAgain = 1;
constexpr double kSuspendedS = 0.05;

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// One start of one arm as it goes into the record.
struct StartRecord {
  json run;
  std::unique_ptr<Arm> arm;
  std::string variant;
  bool injected = false;                // repeats the plan's share of its calls
  std::map<std::string, json> samples;  // by tier
  std::vector<std::string> faults;
};

class Sitting {
 public:
  Sitting(const Plan& plan, Device& device, const AbInputs& inputs)
      : plan_(plan),
        device_(device),
        inputs_(inputs),
        schedule_(make_schedule(plan)),
        content_(device.fresh_seed()) {}

  json run() {
    run_pairs();
    json r = finish();
    spent_.wall_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    r["harness"] = harness_json(spent_, r);
    return r;
  }

 private:
  void run_pairs() {
    const std::size_t total = schedule_.pairs.size();
    std::size_t done = 0;
    for (const ScheduledPair& pair : schedule_.pairs) {
      if (inputs_.progress) inputs_.progress(done, total);
      if (!run_until_kept(pair)) break;
      ++done;
    }
    if (!over_ && plan_.extension) extend();
  }

  // A discarded pair is re-run in the same order. False: the sitting is over.
  bool run_until_kept(const ScheduledPair& pair) {
    for (;;) {
      const bool kept = run_pair(pair);
      if (over_) return false;
      if (kept) return true;
      if (++discards_ > static_cast<int>(schedule_.pairs.size()) / 10 + 1) {
        over_ = true;
        return false;
      }
    }
  }

  bool run_pair(const ScheduledPair& pair) {
    const double suspended = device_.suspended_s();
    const HostLoad load = device_.load();
    const std::string card = device_.card_state();
    const char code_b = schedule_.code_a == 'X' ? 'Y' : 'X';
    StartRecord arms[2];  // [0] coded as A, [1] coded as B
    const int order[2] = {pair.a_first ? 0 : 1, pair.a_first ? 1 : 0};
    bool failed = false;
    // On a card a start is mostly the driver's and the filling of copies: the two go side by side.
    const bool together = plan_.backend != "host";
    for (int position = 0; position < 2 && !failed; ++position) {
      const int which = order[position];
      StartRecord& s = arms[which];
      s.variant = which == 1 && pair.kind != PairKind::kAa ? plan_.b : plan_.a;
      s.injected = plan_.injected > 0.0 && which == 1 && pair.kind != PairKind::kAa;
      s.run = {{"pair", pair.pair},
               {"slot", slot_++},
               {"arm", std::string(1, which == 0 ? schedule_.code_a : code_b)},
               {"kind", to_string(pair.kind)},
               {"first", position == 0},
               {"status", pair.kind == PairKind::kBurnIn ? "burn_in" : "ok"},
               {"code", nullptr},
               {"t_start", utc_now()},
               {"pid_start_ns", 0},
               {"switch_proof", {{"seen_in_process", ""}, {"child_echo", ""}}},
               {"fallback", json::object()},
               {"host", nullptr},
               {"gpu", nullptr}};
      failed = !guarded(s, [&] {
        const Spending start(spent_.start_s);
        s.arm = device_.start(s.variant, which == 1 ? plan_.a : plan_.b);
        if (!together) greet(s);
      });
    }
    for (const int which : order) {
      const Spending start(spent_.start_s);
      if (together && !failed) failed = !guarded(arms[which], [&] { greet(arms[which]); });
    }
    if (!failed) failed = !run_blocks(pair, arms);
    const std::string card_now = device_.card_state();
    for (const int which : order) {
      StartRecord& s = arms[which];
      if (s.run.is_null()) continue;  // the other arm failed before this one was started
      Usage usage;
      json tiers = nullptr;
      if (s.arm && !failed && !card.empty())
        failed = !guarded(s, [&] { tiers = json::parse(s.arm->card()); });
      if (!card.empty())
        s.run["gpu"] = {
            {"tiers", tiers}, {"before", json::parse(card)}, {"after", json::parse(card_now)}};
      if (s.arm && !failed) {
        const Spending end(spent_.end_s);
        failed = !guarded(s, [&] { usage = s.arm->finish(); });
      }
      const HostLoad now = device_.load();
      s.run["host"] = {{"cpu_s", usage.cpu_s},
                       {"involuntary_switches", usage.involuntary_switches},
                       {"major_faults", usage.page_faults},
                       {"steal_s", now.steal_s - load.steal_s},
                       {"machine_busy_s", now.busy_s - load.busy_s},
                       {"cpu_mhz", json::array({load.mhz, now.mhz})}};
      const Spending end(spent_.end_s);
      s.arm.reset();
    }
    const bool suspended_now = device_.suspended_s() - suspended > kSuspendedS;
    for (StartRecord& s : arms) {
      if (s.run.is_null()) continue;
      if (suspended_now && !failed) {
        s.run["status"] = "discarded";
        s.run["code"] = "HOST_SUSPENDED";
      }
      if (failed && s.run["status"] == "ok") {  // its samples end where the other arm did
        s.run["status"] = "discarded";
        s.run["code"] = kPartnerFailed;
      }
      store(s);
    }
    if (failed) over_ = true;
    // A wrong answer needs no further pairs to be a wrong answer.
    for (const StartRecord& s : arms) over_ = over_ || !s.faults.empty();
    return !suspended_now;
  }

  void greet(StartRecord& s) {
    s.arm->greet();
    const ArmIdentity& id = s.arm->identity();
    s.run["pid_start_ns"] = id.pid_start_ns;
    s.run["switch_proof"] = {{"seen_in_process", id.switch_seen}, {"child_echo", id.switch_echo}};
    for (std::size_t t = 0; t < plan_.tiers.size(); ++t) {
      if (!id.fallback.at(t).empty()) s.run["fallback"][plan_.tiers[t].id] = id.fallback[t];
    }
    const bool as_b = s.variant == plan_.b && plan_.a != plan_.b;
    identities_.try_emplace(as_b ? "B" : "A", id);
    if (!s.run["fallback"].empty())
      throw ArmError("INELIGIBLE", "not eligible: " + s.run["fallback"].dump());
    for (const PlanTier& t : plan_.tiers) {
      s.samples[t.id] = {{"unit", "s"},
                         {"wall", json::array()},
                         {"cpu", json::array()},
                         {"outer", json::array()},
                         {"ran", json::array()},
                         {"wait", json::array()},
                         {"preempted", json::array()},
                         {"group_calls", 1},
                         {"warmed", true},
                         {"calls", json::array()},
                         {"regime", plan_.regime},
                         {"audit_s", nullptr},
                         {"outputs_checked", 0}};
    }
  }

  // Sizes are found once an arm, in its first start, and kept, so that every start of an arm does the same work.
  const Calibration& calibration(StartRecord& s, int tier) {
    const auto key = std::make_pair(s.variant, tier);
    const auto it = sizes_.find(key);
    if (it != sizes_.end()) return it->second;
    Calibration size = calibrated(s, tier);
    if (plan_.injected > 0.0) {  // whole groups of the units of which one is repeated, in both arms
      const int calls = size.group_calls * size.groups;
      const int whole = size.unit_calls * injected_one_in();
      size.group_calls = (size.group_calls + whole - 1) / whole * whole;
      size.groups = std::max(1, calls / size.group_calls);
    }
    return sizes_.emplace(key, size).first->second;
  }
  Calibration calibrated(StartRecord& s, int tier) {
    const Spending work(spent_.work_s);
    return s.arm->calibrate(tier, plan_.block_us);
  }
  BlockReply run_block(StartRecord& s, const BlockRequest& request) {
    const Spending work(spent_.work_s);
    BlockReply reply = s.arm->block(request);
    spent_.timed_s += reply.wall_s;
    return reply;
  }
  int injected_one_in() const { return static_cast<int>(std::lround(1.0 / plan_.injected)); }

  bool run_blocks(const ScheduledPair& pair, StartRecord (&arms)[2]) {
    const int tiers = static_cast<int>(plan_.tiers.size());
    std::vector<std::vector<bool>> order;
    for (int t = 0; t < tiers; ++t) {
      order.push_back(
          block_order(plan_.blocks, pair.a_first, pair.block_seed + static_cast<std::uint64_t>(t)));
    }
    for (int quad = 0; quad < plan_.blocks / 2; ++quad) {
      for (int t = 0; t < tiers; ++t) {
        for (int k = 0; k < 4; ++k) {
          StartRecord& s =
              arms[order[static_cast<std::size_t>(t)][static_cast<std::size_t>(quad * 4 + k)] ? 0
                                                                                              : 1];
          const bool last = quad == plan_.blocks / 2 - 1 && k >= 1;
          if (!guarded(s, [&] { block(s, t, last); })) return false;
        }
      }
    }
    for (int t = 0; t < tiers; ++t) {
      for (StartRecord& s : arms) {
        if (!guarded(s, [&] { audit(s, t); })) return false;
      }
    }
    return true;
  }

  void block(StartRecord& s, int tier, bool last) {
    const Calibration& size = calibration(s, tier);
    BlockRequest request;
    request.tier = tier;
    request.group_calls = size.group_calls;
    if (s.injected) request.extra_calls = size.group_calls / injected_one_in();
    request.seed = content_.next();
    const bool one_call = size.groups == 1 && size.group_calls == 1;
    request.warm = !one_call;
    // The end of a block cannot be foreseen from inside, and with it the call whose outputs are looked at. A block of one
    // call needs no such care: its call has its own content and is the one looked at.
    request.groups =
        size.groups +
        (one_call
             ? 0
             : static_cast<int>(content_.below(static_cast<std::uint64_t>(size.groups) / 8 + 2)));
    json& samples = s.samples[plan_.tiers[static_cast<std::size_t>(tier)].id];
    BlockReply reply = run_block(s, request);
    // A block in which the kernel took the core away is an environment event seen without looking at its time: it is
    // kept aside and measured again, once, by the same rule in
    // both arms; what remains of the waiting is subtracted (analysis.cpp, busy_time).
    for (int again = 0; reply.preempted > 0 && again < kMeasureAgain; ++again) {
      samples["preempted"].push_back(reply.wall_s /
                                     (static_cast<double>(request.groups) * request.group_calls));
      request.seed = content_.next();
      reply = run_block(s, request);
    }
    samples["wall"].push_back(reply.wall_s);
    samples["cpu"].push_back(reply.cpu_s);
    if (reply.event_s > 0.0) samples["event"].push_back(reply.event_s);
    samples["wait"].push_back(reply.wait_s);
    samples["ran"].push_back(reply.ran_s);
    samples["outer"].push_back(reply.outer_s);
    samples["group_calls"] = request.group_calls;
    samples["warmed"] = request.warm;
    samples["calls"].push_back(static_cast<std::int64_t>(request.groups) * request.group_calls);
    note_reply(s, tier, reply);
    const bool unchecked = samples["outputs_checked"] == 0;
    if (content_.below(kCheckOneIn) == 0 || (last && unchecked)) check(s, request, samples);
  }

  // One short block in which every call has new content: what is only fast on repeated input shows here.
  // On a card there is no host code in a timed call that could tell one input from another.
  void audit(StartRecord& s, int tier) {
    const Calibration& size = calibration(s, tier);
    if (plan_.backend != "host") return;
    if (size.group_calls == 1) return;  // the timed blocks already change the content at every call
    BlockRequest request;
    request.tier = tier;
    request.groups = kAuditGroups;
    request.seed = content_.next();
    const BlockReply reply = run_block(s, request);
    json& samples = s.samples[plan_.tiers[static_cast<std::size_t>(tier)].id];
    samples["audit_s"] =
        busy_time(reply.wall_s, reply.cpu_s, reply.wait_s, plan_.threads) / kAuditGroups;
    note_reply(s, tier, reply);
    check(s, request, samples);
  }

  void note_reply(StartRecord& s, int tier, const BlockReply& reply) {
    const std::string at = " on tier " + plan_.tiers[static_cast<std::size_t>(tier)].id;
    if (!reply.inputs_intact) fault(s, "changed its inputs" + at);
    if (!reply.broken_guard.empty())
      fault(s, "wrote outside its outputs" + at + ": " + reply.broken_guard);
  }

  void check(StartRecord& s, const BlockRequest& request, json& samples) {
    const Spending check(spent_.check_s);
    const auto outputs = s.arm->outputs(request.tier);
    const std::string wrong = device_.judge(s.variant, request, outputs);
    samples["outputs_checked"] = samples["outputs_checked"].get<int>() + 1;
    if (!wrong.empty())
      fault(s,
            "gave a wrong answer on tier " +
                plan_.tiers[static_cast<std::size_t>(request.tier)].id + ": " + wrong);
  }

  void fault(StartRecord& s, const std::string& text) {
    if (s.faults.size() < 8) s.faults.push_back(text);
  }

  template <class F>
  bool guarded(StartRecord& s, F&& body) {
    try {
      body();
      return true;
    } catch (const ArmError& e) {
      s.run["status"] = "failed";
      s.run["code"] = e.code();
      ASSAY_LOG(warn, "arm {}: {}", s.variant, e.what());
      return false;
    }
  }

  void store(StartRecord& s) {
    s.run["run"] = runs_.size();
    json samples = json::object();
    for (auto& [tier, v] : s.samples) {
      v["sha256"] = samples_digest(v);
      samples[tier] = v;
    }
    s.run["samples"] = samples;
    s.run["faults"] = s.faults;
    runs_.push_back(s.run);
  }

  void extend() {
    // Two pairs at a time, one of each order, so that the balance holds wherever it stops.
    for (;;) {
      const json now = analyse(finish_inputs());
      const json& e = now.at("analysis").at("e_process");
      const int pairs = static_cast<int>(now["analysis"]["d"].size());
      bool crossed = false;
      for (const json& v : e) crossed = crossed || v.get<double>() >= 20.0;
      if (crossed || pairs >= plan_.extension->max_pairs) return;
      const int next = runs_.empty() ? 0 : runs_.back().at("pair").get<int>() + 1;
      for (const ScheduledPair& pair : extension_pairs(plan_, next)) {
        if (!run_until_kept(pair)) return;
      }
    }
  }

  json arm_json(const std::string& label, char code) const {
    const std::string& variant = label == "A" ? plan_.a : plan_.b;
    const auto it = identities_.find(label);
    const ArmIdentity id = it != identities_.end() ? it->second : ArmIdentity{};
    json libs = json::array();
    for (const Library& l : id.libs) libs.push_back({{"soname", l.soname}, {"sha256", l.sha256}});
    int eligible = 0;
    json fallback = json::object();
    for (const std::string& why : id.fallback) {
      if (why.empty()) {
        ++eligible;
      } else {
        fallback[why] = fallback.value(why, 0) + 1;
      }
    }
    const json& source = label == "A" ? inputs_.source_a : inputs_.source_b;
    return {{"code", std::string(1, code)},
            {"label", label},
            {"variant", variant},
            {"commit", build_id().commit},
            {"dirty", build_id().dirty},
            {"exe_sha256", id.exe_sha256},
            {"libs", libs},
            {"sass", json::array()},
            {"argv", id.argv},
            {"env_delta", {{"ASSAY_" + upper(plan_.op), variant}}},
            {"env_bytes", id.env_bytes},
            {"clock_floor_s", id.clock_floor_s},
            {"pinned", id.pinned},
            {"source_digest", source.is_object() ? source.at("digest") : json("")},
            {"counters",
             {{"eligible", eligible},
              {"selected", variant == plan_.a && label == "A" && plan_.a == "stock" ? 0 : eligible},
              {"fallback", fallback}}}};
  }

  static std::string upper(std::string text) {
    for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return text;
  }

  json finish_inputs() const {
    const std::string hash = plan_sha256(plan_);
    json r;
    r["schema"] = "abg-result";
    r["schema_version"] = "1.0.0";
    r["recorded_utc"] = utc_now();
    r["scratch"] = inputs_.scratch;
    r["plan"] = {{"sha256", hash},
                 {"order_seed", std::to_string(order_seed(hash))},
                 {"body", plan_json(plan_)}};
    r["arms"] = json::array(
        {arm_json("A", schedule_.code_a), arm_json("B", schedule_.code_a == 'X' ? 'Y' : 'X')});
    r["parity"] = inputs_.parity;
    r["peer"] = inputs_.peer;
    r["machine"] = inputs_.machine;
    r["build"] = build_json();
    if (!inputs_.cold.is_null()) r["cold"] = inputs_.cold;
    r["runs"] = runs_;
    r["aa_pool"] = {{"records", inputs_.aa_pool_records}, {"d", inputs_.aa_pool}};
    json work = json::array();
    for (std::size_t t = 0; t < plan_.tiers.size(); ++t) {
      work.push_back({{"id", plan_.tiers[t].id},
                      {"moved_bytes", device_.bytes_moved(static_cast<int>(t))},
                      {"flops", device_.flops(static_cast<int>(t))}});
    }
    r["work"] = work;
    return r;
  }

  json finish() const {
    json r = finish_inputs();
    r.update(analyse(r));
    return r;
  }

  const Plan& plan_;
  Device& device_;
  const AbInputs& inputs_;
  Schedule schedule_;
  Rng content_;
  std::vector<json> runs_;
  std::map<std::pair<std::string, int>, Calibration> sizes_;
  std::map<std::string, ArmIdentity> identities_;
  Spent spent_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  int slot_ = 0;
  int discards_ = 0;
  bool over_ = false;
};

}  // namespace

json run_ab(const Plan& plan, Device& device, const AbInputs& inputs) {
  check_plan(plan);
  if (plan.lane != "micro")
    throw UserError("lane " + plan.lane + ": this driver runs the micro lane");
  const PlannedPower power = planned_power(plan, inputs.aa_pool);
  if (power.known && power.mde > stats::ln(plan.bar) && !plan.underpowered &&
      plan.stage != "smoke") {
    char text[256];
    const auto needed = stats::pairs_needed(stats::ln(plan.bar), plan.alpha, power.sd);
    std::snprintf(
        text,
        sizeof text,
        "planned MDE %.2f %% is above the bar %.2f %% at %d pairs (A/A sd %.2f %%): %s, raise "
        "--bar, or start with --underpowered",
        (stats::exp(power.mde) - 1.0) * 100.0,
        (plan.bar - 1.0) * 100.0,
        plan.pairs,
        power.sd * 100.0,
        needed ? ("use --pairs " + std::to_string(*needed)).c_str() : "60 pairs do not suffice");
    throw UserError(text);
  }
  return Sitting(plan, device, inputs).run();
}

PlannedPower planned_power(const Plan& plan, const std::vector<double>& aa_pool) {
  PlannedPower out;
  if (aa_pool.size() < 3) return out;
  out.sd = *stats::sample_sd(aa_pool);
  const auto mde = stats::minimum_detectable_effect(plan.pairs, plan.alpha, out.sd);
  out.known = mde.has_value();
  out.mde = mde.value_or(0.0);
  return out;
}

std::string numerics_of(const Problem& problem) {
  const std::string shape = problem.shape_text();
  for (const char* lane : {"exact", "fast"}) {
    if (shape.find(std::string("numerics=") + lane) != std::string::npos) return lane;
  }
  return "";
}

std::vector<PlanTier> default_tiers(const OpInfo& op,
                                    const std::string& a,
                                    const std::string& b,
                                    const std::string& numerics,
                                    const DeviceInfo& device) {
  if (op.make_problem == nullptr || op.case_names.empty()) {
    throw UserError("op " + op.name +
                    " has no cases of its own to time: the engine lane judges it");
  }
  struct Candidate {
    std::string name;
    double work = 0.0;
    bool model_shape = false;
    std::string lane;  // "exact", "fast", or empty when the op has no lanes
  };
  std::vector<Candidate> all;
  std::string why = "no finite case";
  // Where there are timing cases, no other is looked at: to make a problem takes time.
  const bool timing = std::any_of(op.case_names.begin(), op.case_names.end(), [](const auto& name) {
    return name.starts_with(kTimingPrefix);
  });
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    if (timing && !op.case_names[i].starts_with(kTimingPrefix)) continue;
    const auto problem = op.make_problem(i, 0);
    if (problem->mostly_nonfinite()) continue;
    bool eligible = true;
    for (const std::string& v : {a, b}) {
      if (const Why reason = problem->ineligible(op.find(v), device)) {
        eligible = false;
        why = reason;
      }
    }
    if (!eligible) continue;
    Candidate c{op.case_names[i], problem->flops() + problem->bytes_moved(), false, ""};
    c.model_shape = c.name.starts_with("26b_") || c.name.starts_with("tiny_");
    c.lane = numerics_of(*problem);
    all.push_back(std::move(c));
  }
  // One lane only: a mean over both would describe no run of the engine. The default is the engine's.
  const auto in_lane = [&](const std::string& lane) {
    return std::any_of(all.begin(), all.end(), [&](const Candidate& c) { return c.lane == lane; });
  };
  const std::string lane =
      !numerics.empty() ? numerics : (in_lane("fast") ? "fast" : (in_lane("exact") ? "exact" : ""));
  std::erase_if(all, [&](const Candidate& c) {
    return c.lane != lane && !(c.lane.empty() && numerics.empty());
  });
  if (std::any_of(all.begin(), all.end(), [](const Candidate& c) { return c.model_shape; })) {
    std::erase_if(all, [](const Candidate& c) { return !c.model_shape; });
  }
  if (all.empty()) {
    throw UserError("op " + op.name + ", variant " + b +
                    (lane.empty() ? "" : ", numerics " + lane) + ": no case to time (" + why + ")");
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& x, const Candidate& y) {
    return x.work > y.work;
  });
  // The CPU executor takes minutes for a model's shape; its times say nothing anyway.
  const bool executed = device.backend == Backend::kCuda && gpu::simulated();
  if (executed) std::reverse(all.begin(), all.end());
  if (all.size() > 3) all.resize(3);
  if (executed) all.resize(1);
  std::vector<PlanTier> tiers;
  for (const Candidate& c : all) {
    tiers.push_back({c.name, "micro", 1.0 / static_cast<double>(all.size()), true});
  }
  return tiers;
}

// The card, and what it gives in this sitting. Measured once a process.
static const json& card_record() {
  static const json card = [] {
    const DeviceInfo& d = gpu::device();
    const gpu::LaunchCost cost = gpu::launch_cost(gpu::simulated() ? 2 : 50);
    const CardMonitor monitor;
    return json{{"compute_capability", d.cc},
                {"multiprocessors", d.multiprocessors},
                {"memory_bytes", d.memory_bytes},
                {"l2_bytes", d.l2_bytes},
                {"driver", monitor.driver()},
                {"nvml", monitor.absent().empty() ? "present" : "none: " + monitor.absent()},
                {"read_bytes_per_s", gpu::read_bandwidth()},
                {"copy_bytes_per_s", gpu::copy_bandwidth()},
                {"event_floor_us", cost.event_floor_us},
                {"launch_us", cost.launch_us},
                {"launch_sync_us", cost.launch_sync_us},
                {"graph_node_us", cost.node_us}};
  }();
  return card;
}

json machine_record(const DeviceInfo& device) {
  json m = machine_json(device);
  utsname names{};
  m["kernel"] = ::uname(&names) == 0 ? std::string(names.release) : "";
  m["governor"] = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  m["last_level_cache_bytes"] = static_cast<std::int64_t>(named_cache_bytes());
  m["gpu"] = device.backend == Backend::kCuda ? card_record() : json(nullptr);
  return m;
}

std::string results_folder(const std::string& root, const std::string& card, bool scratch) {
  if (scratch) return root + "/scratch";
  return root + "/" + card_slug(card) + "/" + utc_now().substr(0, 10) + "_" +
         std::string(build_id().commit).substr(0, 12);
}

}  // namespace assay
