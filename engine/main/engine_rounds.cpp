#include "engine/main/engine_rounds.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/ab.h"
#include "bench/ledger.h"
#include "bench/process.h"
#include "bench/tiers.h"
#include "engine/main/ab_gates.h"
#include "kernels/base/build_id.h"
#include "kernels/base/device_info.h"
#include "kernels/base/env.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/proven.h"
#include "kernels/base/record.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
constexpr double kArmLimitS = 900.0;

std::string switch_of(const std::string& op) {
  std::string name = "ASSAY_" + op;
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// Every arm sets the same switches, to stock where it has no variant, and a pad takes up the difference in length.
std::vector<std::string> environment_of(const StackPlan& plan, const StackArm& arm) {
  std::vector<std::string> env;
  std::size_t pad = 1;
  for (const auto& [op, variant] : plan.members) {
    const auto it = arm.switches.find(op);
    const std::string value = it == arm.switches.end() ? "stock" : it->second;
    env.push_back(switch_of(op) + "=" + value);
    pad += std::max(variant.size(), std::strlen("stock")) - value.size();
  }
  env.push_back("BENCH_PAD=" + std::string(pad, 'x'));
  if (const auto path = outside_variable("LD_LIBRARY_PATH"))
    env.push_back("LD_LIBRARY_PATH=" + *path);
  return env;
}

// The switches other than stock in the process's own environment, by op, and that environment's size.
json switches_seen(pid_t pid, const StackPlan& plan, json& bytes) {
  // The kernel shows a new process's environment a moment after it has started.
  std::string all;
  for (int tries = 0; tries < 2000 && all.find("BENCH_PAD=") == std::string::npos; ++tries) {
    if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::ifstream in("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    all = text.str();
  }
  bytes = all.size();
  json seen = json::object();
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\0', at), all.size());
    const std::string entry = all.substr(at, end - at);
    for (const auto& [op, variant] : plan.members) {
      const std::string start = switch_of(op) + "=";
      if (entry.starts_with(start) && entry != start + "stock")
        seen[op] = entry.substr(start.size());
    }
    at = end + 1;
  }
  return seen;
}

// Starts one arm and waits for its end; fills the run's environment and switches. Why it failed, or empty.
std::string ask_arm(const std::vector<std::string>& args,
                    const std::vector<std::string>& env,
                    const StackPlan& plan,
                    json& run,
                    json& answer) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "cannot open a pipe";
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const auto& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (const auto& e : env) envp.push_back(const_cast<char*>(e.c_str()));
  envp.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    return std::string("cannot start: ") + std::strerror(error);
  }
  run["switches_seen"] = switches_seen(pid, plan, run["env_bytes"]);
  const auto limit = Clock::now() + std::chrono::duration<double>(kArmLimitS);
  std::string text;
  bool hang = false;
  for (;;) {
    pollfd p{ends[0], POLLIN, 0};
    if (Clock::now() > limit) {
      hang = true;
      ::kill(pid, SIGKILL);
      break;
    }
    if (::poll(&p, 1, 1000) <= 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR)) break;
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (hang) return "no answer within " + std::to_string(static_cast<int>(kArmLimitS)) + " s";
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "exit " + std::to_string(WEXITSTATUS(status));
  answer = json::parse(text, nullptr, false);
  if (!answer.is_object() || !answer.contains("samples") || !answer.contains("switches"))
    return "answered with no record";
  run["switches_echo"] = answer.at("switches");
  return "";
}

// One timed run of a round.
std::string run_arm(const std::vector<std::string>& args,
                    const std::vector<std::string>& env,
                    const StackPlan& plan,
                    json& run) {
  json answer;
  if (std::string why = ask_arm(args, env, plan, run, answer); !why.empty()) return why;
  run["armed"] = answer.at("armed");
  run["samples"] = answer.at("samples");
  run["written"] = answer.at("written");
  for (const PlanTier& t : plan.tiers) {
    if (!run["samples"].contains(t.id) ||
        run["samples"][t.id].size() != static_cast<std::size_t>(plan.repeat))
      return "answered without tier " + t.id;
  }
  return "";
}

// The needle checks of one arm: untimed, so in a process of its own.
json read_needles_of(const std::vector<std::string>& args,
                     const StackPlan& plan,
                     const StackArm& arm) {
  json read{{"code", std::string(1, arm.code)},
            {"env_bytes", 0},
            {"switches_seen", json::object()},
            {"switches_echo", json::object()},
            {"checks", json::object()}};
  json answer;
  read["reason"] = ask_arm(args, environment_of(plan, arm), plan, read, answer);
  if (read["reason"] == "") read["checks"] = answer.at("needles");
  read["sha256"] = sha256_hex(canonical_json(read["checks"])).substr(0, 16);
  return read;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

}  // namespace

json model_json(const std::string& path) {
  constexpr std::size_t kHead = std::size_t{16} << 20;
  std::ifstream in(path, std::ios::binary);
  std::string head(kHead, '\0');
  in.read(head.data(), static_cast<std::streamsize>(kHead));
  head.resize(static_cast<std::size_t>(in.gcount()));
  return {{"file_bytes", std::filesystem::file_size(path)}, {"head_sha256", sha256_hex(head)}};
}

std::string shipped_model() {
  const std::string results = find_results_folder();
  if (results.empty()) return "";
  const auto path =
      std::filesystem::path(results).parent_path() / "engine/models/tiny-gemma4-moe-q4_0.gguf";
  return std::filesystem::exists(path) ? path.string() : "";
}

StackPlan rounds_from_flags(const PlanFlags& flags, const std::string& model) {
  const OpInfo& op = op_of(flags.op, flags.backend);
  if (flags.b == "stock" || op.find(flags.b) < 0)
    throw UserError("--b " + flags.b + ": op " + op.name + " has no such variant");
  if (flags.a != "stock") throw UserError("--a " + flags.a + ": this lane compares with stock");
  if (flags.protocol != "signed-rank" || flags.injected != 0.0 || !flags.regime.empty())
    throw UserError("--protocol, --inject-slowdown and --regime are for the micro lane");
  StackPlan plan;
  plan.members = {{op.name, flags.b}};
  plan.backend = flags.backend;
  plan.lane = flags.lane;
  plan.numerics = flags.numerics.empty() ? "fast" : flags.numerics;
  if (plan.numerics != "exact" && plan.numerics != "fast")
    throw UserError("--numerics " + flags.numerics + ": exact or fast");
  plan.threads = flags.threads;
  plan.bar = flags.bar;
  plan.model = model_json(model);
  std::vector<std::string> tiers = flags.tiers;
  if (tiers.empty())
    tiers = flags.lane == "engine" ? std::vector<std::string>{"tiny", "read_128"}
                                   : std::vector<std::string>{"window_512"};
  for (const std::string& id : tiers)
    plan.tiers.push_back(
        {id, engine_tier(id).endpoint, 1.0 / static_cast<double>(tiers.size()), true});
  plan.rounds = flags.pairs;
  if (flags.pairs < 8 || rounds_for(2, flags.pairs) != flags.pairs || flags.pairs > 60)
    throw UserError("--pairs " + std::to_string(flags.pairs) + ": an even number from 8 to 60");
  if (flags.needles != std::vector<std::string>{"none"}) plan.needles = flags.needles;
  check_stack_plan(plan);
  return plan;
}

std::optional<json> run_engine_rounds(const StackPlan& plan, const EngineRounds& o) {
  const auto arms = stack_arms(plan);
  const auto schedule = stack_schedule(plan);
  std::vector<std::string> tiers;
  for (const PlanTier& t : plan.tiers) tiers.push_back(t.id);
  std::vector<std::string> args{"assay",
                                "engine-arm",
                                "--model",
                                o.model,
                                "--backend",
                                plan.backend,
                                "--numerics",
                                plan.numerics,
                                "--threads",
                                std::to_string(plan.threads)};
  json record{{"schema", "assay-stack"},
              {"schema_version", "1.0.0"},
              {"scratch", o.scratch},
              {"plan", {{"sha256", stack_plan_sha256(plan)}, {"body", stack_plan_json(plan)}}},
              {"arms", json::array()},
              {"runs", json::array()},
              {"sources", json::object()},
              {"exe_sha256", executable_sha256()},
              {"build", build_json()},
              {"machine", machine_json(device_of(plan.backend))}};
  for (const StackArm& a : arms)
    record["arms"].push_back(
        {{"code", std::string(1, a.code)}, {"without", a.without}, {"switches", a.switches}});
  for (const auto& [op, variant] : plan.members) record["sources"][op] = source_digest(op, variant);
  const std::string card = device_of(plan.backend).name;
  const std::string ledger = ledger_path(o.out, card, plan.backend, o.scratch);
  for (const LedgerLine& line : ledger_lines(plan, card, "started")) append_ledger(ledger, line);
  Progress progress("rounds", schedule.size() * arms.size());
  bool failed = false;
  if (!plan.needles.empty()) {
    std::vector<std::string> ask = args;
    ask.insert(ask.end(), {"--needles", joined(plan.needles)});
    record["needles"] = json::array();
    for (const std::size_t which : {0U, 1U}) {  // S and stock
      record["needles"].push_back(read_needles_of(ask, plan, arms[which]));
      failed = failed || record["needles"].back()["reason"] != "";
    }
    failed = failed || analyse_stack(record).at("verdict").at("word") == "REJECT";
  }
  args.insert(args.end(), {"--tiers", joined(tiers), "--repeat", std::to_string(plan.repeat)});
  const auto began = Clock::now();
  for (std::size_t round = 0; round < schedule.size() && !failed; ++round) {
    for (const int which : schedule[round]) {
      const StackArm& arm = arms[static_cast<std::size_t>(which)];
      json run{{"run", record["runs"].size()},
               {"round", round},
               {"code", std::string(1, arm.code)},
               {"t_start", utc_now()},
               {"env_bytes", 0},
               {"switches_seen", json::object()},
               {"switches_echo", json::object()},
               {"armed", json::array()},
               {"samples", json::object()},
               {"written", json::object()}};
      const std::string reason = run_arm(args, environment_of(plan, arm), plan, run);
      run["status"] = reason.empty() ? "ok" : "failed";
      run["reason"] = reason;
      run["sha256"] = sha256_hex(canonical_json(run["samples"])).substr(0, 16);
      record["runs"].push_back(run);
      progress.update(record["runs"].size());
      failed = failed || !reason.empty();
      if (failed) break;
    }
    const double each = std::chrono::duration<double>(Clock::now() - began).count() /
                        static_cast<double>(round + 1);
    if (round == 0 && o.seconds_left > 0.0 &&
        each * static_cast<double>(schedule.size()) > o.seconds_left)
      return std::nullopt;
  }
  record["recorded_utc"] = utc_now();
  record.update(analyse_stack(record));
  append_record(results_folder(o.out, card, o.scratch) + "/stack.jsonl", record);
  for (const LedgerLine& line : finished_lines(plan, card, record)) append_ledger(ledger, line);
  return record;
}

const json* standing_stack(const std::vector<json>& records,
                           const StackPlan& plan,
                           const Standing& now) {
  const json* first = nullptr;
  for (const json& r : records) {
    if (r.at("schema") != "assay-stack" || r.at("plan").at("sha256") != stack_plan_sha256(plan) ||
        r.at("scratch") != now.scratch || r.at("exe_sha256") != now.exe_sha256 ||
        r.at("machine").at("card") != now.card || r.at("build").at("commit") != now.commit ||
        r.at("build").at("tree_sha256") != now.tree_sha256)
      continue;
    if (first == nullptr || r.at("recorded_utc") < first->at("recorded_utc")) first = &r;
  }
  return first;
}

}  // namespace assay
