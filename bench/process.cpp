#include "bench/process.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/child.h"
#include "bench/run_queue.h"
#include "kernels/base/blocks.h"
#include "kernels/base/env.h"
#include "kernels/base/error.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/measure.h"
#include "kernels/base/nvml.h"
#include "kernels/base/sha256.h"

namespace assay {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

std::string sha256_of_file(const std::string& path) {
  Sha256 hash;
  std::ifstream in(path, std::ios::binary);
  std::vector<char> buffer(1 << 20);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    hash.update(buffer.data(), static_cast<std::size_t>(in.gcount()));
  }
  return hash.hex();
}

// Files do not change under a sitting's feet without a new inode or time; each is read once.
std::string cached_sha256(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return "";
  using Key = std::tuple<dev_t, ino_t, off_t, std::int64_t, std::int64_t>;
  static std::map<Key, std::string> cache;
  const Key key{st.st_dev, st.st_ino, st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
  const auto it = cache.find(key);
  return it != cache.end() ? it->second : cache.emplace(key, sha256_of_file(path)).first->second;
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<Library> mapped_libraries(pid_t pid, const std::string& exe_target) {
  std::set<std::string> paths;
  std::istringstream maps(slurp("/proc/" + std::to_string(pid) + "/maps"));
  for (std::string line; std::getline(maps, line);) {
    const auto slash = line.find('/');
    if (slash == std::string::npos || line.find(" r-xp ") == std::string::npos) continue;
    const std::string path = line.substr(slash);
    if (path != exe_target) paths.insert(path);
  }
  std::vector<Library> libs;
  for (const auto& p : paths) libs.push_back({p.substr(p.rfind('/') + 1), cached_sha256(p)});
  return libs;
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(static_cast<std::size_t>(c), &set)) cpus.push_back(c);
  }
  return cpus;
}

template <class T>
std::string joined(const std::vector<T>& items) {
  std::ostringstream text;
  for (std::size_t i = 0; i < items.size(); ++i) text << (i == 0 ? "" : ",") << items[i];
  return text.str();
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) out.push_back(item);
  return out;
}

double clock_s(clockid_t id) {
  timespec t{};
  ::clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

HostLoad host_load() {
  HostLoad load;
  std::istringstream in(slurp("/proc/stat"));
  std::string cpu;
  double v[10] = {};
  in >> cpu;
  for (double& x : v) in >> x;
  load.steal_s = v[7] / 100.0;
  load.busy_s = (v[0] + v[1] + v[2] + v[5] + v[6]) / 100.0;
  std::ifstream info("/proc/cpuinfo");
  double sum = 0.0;
  int count = 0;
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("cpu MHz")) continue;
    sum += std::atof(line.c_str() + line.find(':') + 1);
    ++count;
  }
  if (count > 0) load.mhz = sum / count;
  return load;
}

class ProcessArm final : public Arm {
 public:
  ProcessArm(const ProcessOptions& options,
             const std::vector<std::string>& argv,
             const std::string& switch_name,
             const std::string& variant,
             const std::string& other,
             double sitting_start_s)
      : timeout_s_(options.timeout_s), switch_name_(switch_name) {
    // Environment size alone can move timings, so both arms get the same names and the same number of bytes: the pad takes
    // up the difference between the two variants' names.
    const std::size_t width = std::max(variant.size(), other.size());
    std::vector<std::string> env{switch_name + "=" + variant,
                                 "BENCH_PAD=" + std::string(1 + width - variant.size(), 'x')};
    if (const auto path = outside_variable("LD_LIBRARY_PATH"))
      env.push_back("LD_LIBRARY_PATH=" + *path);
    identity_.argv = argv;
    spawn(options.executable, argv, env);
    queue_ = std::make_unique<RunQueueClock>(std::to_string(pid_));
    identity_.pid_start_ns =
        static_cast<std::int64_t>((clock_s(CLOCK_MONOTONIC) - sitting_start_s) * 1e9);
  }
  void greet() override {
    const json hello = [&] {
      const std::string line = read_line();
      json parsed = json::parse(line, nullptr, false);
      if (!parsed.is_object() || !parsed.contains("switch") || !parsed.contains("fallback"))
        fail("GARBAGE", "greeted with: " + line);
      return parsed;
    }();
    identity_.switch_echo = hello.at("switch").get<std::string>();
    identity_.fallback = hello.at("fallback").get<std::vector<std::string>>();
    identity_.clock_floor_s = hello.at("clock_floor_s").get<double>();
    identity_.pinned = hello.at("pinned").get<bool>();
    inspect(switch_name_);
  }
  ~ProcessArm() override { reap(true); }
  ProcessArm(const ProcessArm&) = delete;
  ProcessArm& operator=(const ProcessArm&) = delete;

  const ArmIdentity& identity() const override { return identity_; }

  Calibration calibrate(int tier, int block_us) override {
    send("calibrate " + std::to_string(tier) + " " + std::to_string(block_us));
    const std::string line = read_line();
    Calibration c;
    if (std::sscanf(
            line.c_str(), "groups %d calls %d unit %d", &c.groups, &c.group_calls, &c.unit_calls) !=
            3 ||
        c.groups < 1 || c.group_calls < 1 || c.unit_calls < 1) {
      fail("GARBAGE", "answered calibrate with: " + line);
    }
    return c;
  }

  BlockReply block(const BlockRequest& r) override {
    const RunQueueTime before = queue_->read();
    const double own_waited = own_queue_.read().waited_s;
    const auto start = Clock::now();
    send("block " + std::to_string(r.tier) + " " + std::to_string(r.groups) + " " +
         std::to_string(r.group_calls) + " " + std::to_string(r.seed) + (r.warm ? " 1 " : " 0 ") +
         std::to_string(r.extra_calls));
    const std::string line = read_line();
    const double outer = std::chrono::duration<double>(Clock::now() - start).count();
    BlockReply reply;
    const RunQueueTime after = queue_->read();
    reply.ran_s = std::max(0.0, after.ran_s - before.ran_s);
    reply.outer_s = std::max(0.0,
                             outer - std::max(0.0, after.waited_s - before.waited_s) -
                                 (own_queue_.read().waited_s - own_waited));
    int intact = 0;
    char guard[128] = {};
    if (std::sscanf(line.c_str(),
                    "done %la %la %la %la %d %d %127[^\n]",
                    &reply.wall_s,
                    &reply.cpu_s,
                    &reply.wait_s,
                    &reply.event_s,
                    &reply.preempted,
                    &intact,
                    guard) != 7 ||
        !(reply.wall_s > 0.0 && reply.wall_s < 1e6) || !(reply.cpu_s >= 0.0 && reply.cpu_s < 1e6) ||
        !(reply.wait_s >= 0.0 && reply.wait_s < 1e6) ||
        !(reply.event_s >= 0.0 && reply.event_s < 1e6)) {
      fail("GARBAGE", "answered block with: " + line);
    }
    reply.inputs_intact = intact == 1;
    if (std::strcmp(guard, "-") != 0) reply.broken_guard = guard;
    return reply;
  }

  std::vector<std::vector<std::byte>> outputs(int tier) override {
    send("outputs " + std::to_string(tier));
    const std::string line = read_line();
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word != "bytes") fail("GARBAGE", "answered outputs with: " + line);
    std::vector<std::vector<std::byte>> out;
    for (std::size_t n = 0; in >> n;) {
      if (n > (std::size_t{1} << 32))
        fail("GARBAGE", "announced " + std::to_string(n) + " output bytes");
      out.emplace_back(n);
    }
    for (auto& o : out) read_bytes(o.data(), o.size());
    return out;
  }

  std::string card() override {
    send("card");
    std::string line = read_line();
    if (!json::accept(line)) fail("GARBAGE", "answered card with: " + line);
    return line;
  }

  Usage finish() override {
    send("quit");
    const std::string line = read_line();
    if (line != "inputs intact")
      fail(line == "inputs changed" ? "INPUTS_CHANGED" : "GARBAGE", "ended with: " + line);
    return reap(false);
  }

 private:
  void spawn(const std::string& executable,
             const std::vector<std::string>& args,
             const std::vector<std::string>& env) {
    int to_child[2];
    int from_child[2];
    if (::pipe2(to_child, O_CLOEXEC) != 0)
      throw ArmError("CRASH", std::string("cannot open a pipe: ") + std::strerror(errno));
    if (::pipe2(from_child, O_CLOEXEC) != 0) {
      const int error = errno;
      ::close(to_child[0]);
      ::close(to_child[1]);
      throw ArmError("CRASH", std::string("cannot open a pipe: ") + std::strerror(error));
    }
    errors_ = ::memfd_create("stderr", MFD_CLOEXEC);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to_child[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, from_child[1], 1);
    if (errors_ >= 0) ::posix_spawn_file_actions_adddup2(&actions, errors_, 2);
    std::vector<char*> argv;
    for (const auto& a : args) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    std::vector<char*> envp;
    for (const auto& e : env) envp.push_back(const_cast<char*>(e.c_str()));
    envp.push_back(nullptr);
    const int error =
        ::posix_spawn(&pid_, executable.c_str(), &actions, nullptr, argv.data(), envp.data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(to_child[0]);
    ::close(from_child[1]);
    to_ = to_child[1];
    from_ = from_child[0];
    if (error != 0) {
      pid_ = -1;
      fail("CRASH", "cannot start " + executable + ": " + std::strerror(error));
    }
  }

  void inspect(const std::string& switch_name) {
    const std::string base = "/proc/" + std::to_string(pid_);
    const std::string environment = slurp(base + "/environ");
    identity_.env_bytes = environment.size();
    for (std::size_t at = 0; at < environment.size();) {
      const std::size_t end = std::min(environment.find('\0', at), environment.size());
      const std::string entry = environment.substr(at, end - at);
      if (entry.starts_with(switch_name + "="))
        identity_.switch_seen = entry.substr(switch_name.size() + 1);
      at = end + 1;
    }
    identity_.exe_sha256 = cached_sha256(base + "/exe");
    char target[4096];
    const ssize_t n = ::readlink((base + "/exe").c_str(), target, sizeof target);
    identity_.libs =
        mapped_libraries(pid_, n > 0 ? std::string(target, static_cast<std::size_t>(n)) : "");
  }

  void send(const std::string& line) {
    const std::string text = line + "\n";
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = ::write(to_, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("CRASH", "ended before it was asked: " + line);
      done += static_cast<std::size_t>(n);
    }
  }

  // Appends what there is to the buffer; fails on end of file or when the deadline passes.
  void fill(Clock::time_point deadline) {
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0)
        fail("HANG",
             "gave no answer within " + std::to_string(static_cast<int>(timeout_s_)) + " s");
      pollfd p{from_, POLLIN, 0};
      const int ready = ::poll(&p, 1, static_cast<int>(std::min<std::int64_t>(left, 1000)));
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      char chunk[65536];
      const ssize_t n = ::read(from_, chunk, sizeof chunk);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("CRASH", "ended without an answer");
      buffer_.append(chunk, static_cast<std::size_t>(n));
      return;
    }
  }

  std::string read_line() {
    const auto deadline =
        Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s_ * 1000.0));
    for (;;) {
      const auto at = buffer_.find('\n');
      if (at != std::string::npos) {
        std::string line = buffer_.substr(0, at);
        buffer_.erase(0, at + 1);
        return line;
      }
      if (buffer_.size() > (1U << 20)) fail("GARBAGE", "sent a megabyte without a line end");
      fill(deadline);
    }
  }

  void read_bytes(std::byte* out, std::size_t bytes) {
    const auto deadline =
        Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s_ * 1000.0));
    while (bytes > 0) {
      const std::size_t n = std::min(bytes, buffer_.size());
      std::memcpy(out, buffer_.data(), n);
      buffer_.erase(0, n);
      out += n;
      bytes -= n;
      if (bytes > 0) fill(deadline);
    }
  }

  // The child's last words make the difference between "crashed" and a reason; they stay out of records (they may hold
  // paths) and go into the message only.
  [[noreturn]] void fail(std::string code, const std::string& what) {
    std::string end;
    if (pid_ > 0) {
      if (code != "CRASH") ::kill(pid_, SIGKILL);
      int status = 0;
      ::waitpid(pid_, &status, 0);
      pid_ = -1;
      if (WIFSIGNALED(status) && code == "CRASH")
        end = ", signal " + std::to_string(WTERMSIG(status));
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        end = ", exit " + std::to_string(WEXITSTATUS(status));
      if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(Exit::kUsage))
        code = "REFUSED";
    }
    std::string words;
    if (errors_ >= 0) {
      char text[512];
      const off_t size = ::lseek(errors_, 0, SEEK_END);
      const ssize_t n = ::pread(
          errors_, text, sizeof text, std::max<off_t>(0, size - static_cast<off_t>(sizeof text)));
      if (n > 0) words.assign(text, static_cast<std::size_t>(n));
      while (!words.empty() && words.back() == '\n') words.pop_back();
    }
    throw ArmError(code, "the child " + what + end + (words.empty() ? "" : "; it said: " + words));
  }

  Usage reap(bool kill_it) {
    Usage usage;
    if (to_ >= 0) ::close(to_);
    to_ = -1;
    if (pid_ > 0) {
      if (kill_it) ::kill(pid_, SIGKILL);
      int status = 0;
      rusage r{};
      while (::wait4(pid_, &status, 0, &r) < 0 && errno == EINTR) {
      }
      pid_ = -1;
      const auto secs = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
      };
      usage = {secs(r.ru_utime) + secs(r.ru_stime), r.ru_nivcsw, r.ru_majflt};
    }
    if (from_ >= 0) ::close(from_);
    from_ = -1;
    if (errors_ >= 0) ::close(errors_);
    errors_ = -1;
    return usage;
  }

  double timeout_s_;
  std::string switch_name_;
  ArmIdentity identity_;
  std::unique_ptr<RunQueueClock> queue_;
  RunQueueClock own_queue_{"self"};
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  int errors_ = -1;
  std::string buffer_;
};

std::vector<float> as_floats(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> out(bytes.size() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < out.size(); ++i) {
    switch (dtype) {
      case DType::kF32:
        std::memcpy(&out[i], bytes.data() + 4 * i, 4);
        break;
      case DType::kF16: {
        std::uint16_t h = 0;
        std::memcpy(&h, bytes.data() + 2 * i, 2);
        out[i] = half_to_float(h);
        break;
      }
      case DType::kI32: {
        std::int32_t v = 0;
        std::memcpy(&v, bytes.data() + 4 * i, 4);
        out[i] = static_cast<float>(v);
        break;
      }
      case DType::kI8:
        out[i] = static_cast<float>(static_cast<std::int8_t>(bytes[i]));
        break;
      case DType::kU8:
        out[i] = static_cast<float>(static_cast<std::uint8_t>(bytes[i]));
        break;
    }
  }
  return out;
}

std::string judge(FreshProblem& fresh,
                  const OpInfo& op,
                  const std::string& variant,
                  std::uint64_t content_seed,
                  const std::vector<std::vector<std::byte>>& outputs) {
  Problem& problem = fresh.problem();
  const VariantInfo& info = op.variants.at(static_cast<std::size_t>(op.find(variant)));
  fresh.freshen(content_seed);
  std::vector<const Field*> fields;
  for (const Field& f : problem.fields()) {
    if (f.dir != Dir::kIn) fields.push_back(&f);
  }
  if (outputs.size() != fields.size())
    return "returned " + std::to_string(outputs.size()) + " outputs, not " +
           std::to_string(fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (outputs[i].size() != fields[i]->bytes())
      return fields[i]->name + ": " + std::to_string(outputs[i].size()) + " bytes, not " +
             std::to_string(fields[i]->bytes());
  }
  const auto run_here = [&](int index) {
    problem.prepare(index);
    problem.reset();
    problem.run(index, Stream{});
    return fresh.copy_outputs();
  };
  const auto same_bytes = [&](const std::vector<std::vector<std::byte>>& want,
                              bool integers_only) -> std::string {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const bool integer = fields[i]->dtype == DType::kI32 || fields[i]->dtype == DType::kI8 ||
                           fields[i]->dtype == DType::kU8;
      if (integers_only && !integer) continue;
      for (std::size_t b = 0; b < want[i].size(); ++b) {
        if (outputs[i][b] != want[i][b]) {
          return fields[i]->name + "[" + std::to_string(b / dtype_bytes(fields[i]->dtype)) +
                 "] differs from " +
                 (info.exactness == Exactness::kBitwise ? info.bitwise_to : "stock");
        }
      }
    }
    return "";
  };
  const auto runs_here = [&](int index) {
    return index >= 0 && problem.ineligible(index, host_device()) == nullptr;
  };
  // A deterministic stock must repeat its own bits; a bitwise variant those of its counterpart.
  const int self = op.find(variant);
  const int counterpart =
      info.exactness == Exactness::kBitwise ? op.find(info.bitwise_to) : op.find("stock");
  const bool is_stock = info.stage == Stage::kStock;
  if (is_stock && info.deterministic && info.batch_invariant)
    return same_bytes(run_here(self), false);
  if (info.exactness == Exactness::kBitwise && runs_here(counterpart))
    return same_bytes(run_here(counterpart), false);
  std::vector<std::vector<std::byte>> stock;
  if (runs_here(op.find("stock"))) stock = run_here(op.find("stock"));
  if (info.exactness == Exactness::kSelection && !stock.empty()) {
    if (auto wrong = same_bytes(stock, true); !wrong.empty()) return wrong;
  }
  fresh.freshen(content_seed);
  const auto reference = problem.reference_of(self, Backend::kHost);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto got = as_floats(fields[i]->dtype, outputs[i]);
    if (info.exactness == Exactness::kModelLevel) {
      for (std::size_t k = 0; k < got.size(); ++k) {
        if (got[k] - got[k] != 0.0F && reference[i][k] - reference[i][k] == 0.0) {
          return fields[i]->name + "[" + std::to_string(k) +
                 "] is not finite where the reference is";
        }
      }
      continue;
    }
    // Where a sum cancels, no bound of the op holds for stock either: twice stock's own error is allowed then.
    double allowed = problem.error_bound_of(self, Backend::kHost);
    if (!stock.empty())
      allowed =
          std::max(allowed, 2.0 * rel_l2(as_floats(fields[i]->dtype, stock[i]), reference[i]));
    const double distance = rel_l2(got, reference[i]);
    if (!(distance <= allowed)) {
      std::ostringstream text;
      text << fields[i]->name << ": relative L2 " << distance << " against the reference, above "
           << allowed;
      return text.str();
    }
  }
  return "";
}

// Parity has judged this very binary's variant on every case; what is left to show is that the timed process computed the same
// here. So this process computes it too, and a deterministic variant's bytes must be equal; another's must be near.
std::string judge_on_card(FreshProblem& fresh,
                          const OpInfo& op,
                          const std::string& variant,
                          std::uint64_t content_seed,
                          const std::vector<std::vector<std::byte>>& outputs) {
  constexpr double kNear = 1e-5;
  const int index = op.find(variant);
  const VariantInfo& info = op.variants.at(static_cast<std::size_t>(index));
  Problem& problem = fresh.problem();
  fresh.freshen(content_seed);
  problem.prepare(index);
  problem.run(index, Stream{});
  const auto want = fresh.copy_outputs();
  std::size_t i = 0;
  for (const Field& f : problem.fields()) {
    if (f.dir == Dir::kIn) continue;
    if (i >= outputs.size() || outputs[i].size() != f.bytes())
      return f.name + ": not " + std::to_string(f.bytes()) + " bytes";
    const Difference d = measure_bytes(f.dtype, outputs[i].data(), want[i].data(), f.bytes());
    const bool near = info.deterministic ? d.mismatched_bytes == 0 : d.rel_l2 <= kNear;
    if (!near) {
      return f.name + "[" + std::to_string(d.worst_index) + "] is " +
             element_text(f.dtype, outputs[i].data(), d.worst_index) +
             ", the judge's own run gives " + element_text(f.dtype, want[i].data(), d.worst_index);
    }
    ++i;
  }
  return "";
}

class ProcessDevice final : public Device {
 public:
  ProcessDevice(const OpInfo& op, const Plan& plan, ProcessOptions options)
      : op_(op), options_(std::move(options)) {
    start_s_ = clock_s(CLOCK_MONOTONIC);
    std::vector<std::string> tiers;
    for (const PlanTier& t : plan.tiers) {
      tiers.push_back(t.id);
      problems_.push_back(std::make_unique<FreshProblem>(op, find_case(op, t.id)));
    }
    // The last cores: the parent and the interrupts tend to live on the first.
    std::vector<int> cpus = allowed_cpus();
    if (static_cast<std::size_t>(plan.threads) < cpus.size()) {
      cpus.erase(cpus.begin(), cpus.end() - plan.threads);
    } else {
      cpus.clear();
    }
    argv_ = {"assay"};
    argv_.insert(argv_.end(), options_.child_args.begin(), options_.child_args.end());
    for (const std::string& s : {std::string("--op"),
                                 op.name,
                                 std::string("--tiers"),
                                 joined(tiers),
                                 std::string("--threads"),
                                 std::to_string(plan.threads),
                                 std::string("--cpus"),
                                 cpus.empty() ? std::string("-") : joined(cpus)}) {
      argv_.push_back(s);
    }
    if (plan.backend == "host" && plan.regime != "hot") {
      argv_.emplace_back("--regime");
      argv_.push_back(plan.regime);
    }
    if (plan.backend != "host") {
      for (const char* s : {"--backend", plan.backend.c_str(), "--regime", plan.regime.c_str()})
        argv_.emplace_back(s);
      for (auto& problem : problems_) problem->problem().use_device(false);
      monitor_ = std::make_unique<CardMonitor>();
    }
    ::signal(SIGPIPE, SIG_IGN);  // a dead child is an ArmError, not the end of the sitting
  }

  std::unique_ptr<Arm> start(const std::string& variant, const std::string& other) override {
    return std::make_unique<ProcessArm>(options_, argv_, op_.switch_name, variant, other, start_s_);
  }
  std::string judge(const std::string& variant,
                    const BlockRequest& request,
                    const std::vector<std::vector<std::byte>>& outputs) override {
    FreshProblem& problem = *problems_.at(static_cast<std::size_t>(request.tier));
    const std::uint64_t content = group_seed(request.seed, request.groups - 1);
    return monitor_ != nullptr ? judge_on_card(problem, op_, variant, content, outputs)
                               : assay::judge(problem, op_, variant, content, outputs);
  }
  std::string card_state() const override {
    if (monitor_ == nullptr) return "";
    if (!monitor_->absent().empty()) return json{{"absent", monitor_->absent()}}.dump();
    const CardState s = monitor_->read();
    return json{{"sm_mhz", s.sm_mhz},
                {"mem_mhz", s.memory_mhz},
                {"temp_c", s.temperature_c},
                {"power_w", s.power_w},
                {"energy_j", s.energy_j},
                {"reasons", s.throttle_reasons},
                {"ecc_uncorrected", s.ecc_uncorrected},
                {"processes", s.processes}}
        .dump();
  }
  HostLoad load() const override { return host_load(); }
  double suspended_s() const override { return clock_s(CLOCK_BOOTTIME) - clock_s(CLOCK_MONOTONIC); }
  std::uint64_t fresh_seed() override {
    std::uint64_t seed = 0;
    if (::getrandom(&seed, sizeof seed, 0) != static_cast<ssize_t>(sizeof seed))
      throw Error(Exit::kCheckFailed, "getrandom failed");
    return seed;
  }
  double bytes_moved(int tier) const override {
    return problems_.at(static_cast<std::size_t>(tier))->problem().bytes_moved();
  }
  double flops(int tier) const override {
    return problems_.at(static_cast<std::size_t>(tier))->problem().flops();
  }

 private:
  const OpInfo& op_;
  ProcessOptions options_;
  std::vector<std::string> argv_;
  std::vector<std::unique_ptr<FreshProblem>> problems_;
  std::unique_ptr<CardMonitor> monitor_;  // on a card
  double start_s_ = 0.0;
};

}  // namespace

std::unique_ptr<Device> make_process_device(const OpInfo& op,
                                            const Plan& plan,
                                            const ProcessOptions& options) {
  return std::make_unique<ProcessDevice>(op, plan, options);
}

const DeviceInfo& device_of(const std::string& backend) {
  if (backend == "host") return host_device();
  if (const Why why = gpu::unavailable())
    throw HardwareError("--backend cuda: " + std::string(why));
  return gpu::device();
}

ChildCommand parse_child_command(const std::vector<std::string>& args) {
  ChildCommand c;
  for (std::size_t i = 0; i + 1 < args.size(); i += 2) {
    const std::string& key = args[i];
    const std::string& value = args[i + 1];
    if (key == "--op") {
      c.op = value;
    } else if (key == "--tiers") {
      c.tiers = split(value);
    } else if (key == "--threads") {
      c.threads = std::atoi(value.c_str());
    } else if (key == "--cpus") {
      if (value != "-") {
        for (const auto& n : split(value)) c.cpus.push_back(std::atoi(n.c_str()));
      }
    } else if (key == "--backend") {
      c.backend = value == "cuda" ? Backend::kCuda : Backend::kHost;
    } else if (key == "--regime") {
      c.regime = value;
    } else {
      throw UserError("ab-child: unknown argument " + key);
    }
  }
  if (c.op.empty() || c.tiers.empty())
    throw UserError("ab-child is started by 'assay ab', not by hand");
  return c;
}

std::string judge_outputs(const OpInfo& op,
                          std::size_t case_index,
                          const std::string& variant,
                          std::uint64_t content_seed,
                          const std::vector<std::vector<std::byte>>& outputs) {
  FreshProblem fresh(op, case_index);
  return judge(fresh, op, variant, content_seed, outputs);
}

}  // namespace assay
