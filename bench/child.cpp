#include "bench/child.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench/card_timer.h"
#include "bench/cold.h"
#include "bench/run_queue.h"
#include "kernels/base/error.h"
#include "kernels/base/host_pool.h"
#include "kernels/base/rng.h"

namespace assay {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

double process_cpu_s() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void write_all(int fd, const void* data, std::size_t bytes) {
  const auto* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(Exit::kCheckFailed, "the parent is gone");
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  // False at end of file.
  bool next(std::string& line) {
    for (;;) {
      const auto at = buffer_.find('\n');
      if (at != std::string::npos) {
        line = buffer_.substr(0, at);
        buffer_.erase(0, at + 1);
        return true;
      }
      char chunk[4096];
      const ssize_t n = ::read(fd_, chunk, sizeof chunk);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      buffer_.append(chunk, static_cast<std::size_t>(n));
    }
  }

 private:
  int fd_;
  std::string buffer_;
};

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h = (h ^ v) * 0x9E3779B97F4A7C15ULL;
  return h ^ (h >> 29);
}

std::uint64_t hash_bytes(std::uint64_t h, const std::byte* p, std::size_t n) {
  for (; n >= 8; p += 8, n -= 8) {
    std::uint64_t v = 0;
    std::memcpy(&v, p, 8);
    h = mix(h, v);
  }
  std::uint64_t v = 0;
  std::memcpy(&v, p, n);
  return mix(h, v ^ (static_cast<std::uint64_t>(n) << 56));
}

int involuntary_switches() {
  rusage r{};
  ::getrusage(RUSAGE_SELF, &r);
  return static_cast<int>(r.ru_nivcsw);
}

bool pin(const std::vector<int>& cpus) {
  if (cpus.empty()) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int c : cpus) CPU_SET(static_cast<std::size_t>(c), &set);
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

// On the host: the calls themselves, between two readings of the clock.
class HostTimer final : public TierTimer {
 public:
  HostTimer(const OpInfo& op,
            std::size_t case_index,
            int variant,
            Stream stream,
            const std::string& regime)
      : sets_(op, case_index, regime),
        variant_(variant),
        stream_(stream),
        one_call_(regime == "cold-flush") {}
  Why ineligible() const override { return first().problem().ineligible(variant_, host_device()); }
  void prepare() override {
    for (std::size_t i = 0; i < sets_.size(); ++i) sets_.at(i).problem().prepare(variant_);
  }
  TimedGroups run(int groups, int calls_a_group, std::uint64_t seed, bool warm) override {
    // Warm code and, when hot, data with content that no timed group has.
    if (warm) {
      sets_.at(turn_).freshen(group_seed(seed, -1));
      sets_.at(turn_++).problem().run(variant_, stream_);
    }
    sets_.flush();  // once more than there are groups, with or without a warm call
    TimedGroups result;
    for (int g = 0; g < groups; ++g) {
      // The set of the group's last call, whose outputs may be looked at.
      FreshProblem& last = sets_.at(turn_ + static_cast<std::size_t>(calls_a_group) - 1);
      last.freshen(group_seed(seed, g));
      const std::uint64_t before = last.fresh_hash();
      sets_.flush();
      const ThreadClocks clocks;
      const auto start = Clock::now();
      for (int c = 0; c < calls_a_group; ++c) sets_.at(turn_++).problem().run(variant_, stream_);
      const auto stop = Clock::now();
      clocks.add_to(result);
      if (g + 1 == groups)
        outputs_ = last.copy_outputs();  // at once: work done later comes too late
      result.wall_s += seconds(stop - start);
      result.inputs_intact = result.inputs_intact && last.fresh_hash() == before;
    }
    return result;
  }
  std::vector<std::vector<std::byte>> outputs() override { return outputs_; }
  std::uint64_t input_hash() override {
    std::uint64_t h = 0;
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      sets_.at(i).freshen(0);
      h = mix(h, sets_.at(i).input_hash());
    }
    return h;
  }
  std::string broken_guard() override {
    std::string broken;
    for (std::size_t i = 0; i < sets_.size() && broken.empty(); ++i)
      broken = sets_.at(i).problem().broken_guard();
    return broken;
  }
  // Long against the clock (0.05 %) but short against the block; a problem with in-out fields must restart from its own state at
  // every call.
  double least_group_s(double, double clock_floor_s) const override {
    return first().accumulates() ? 0.0 : std::max(50e-6, 2000.0 * clock_floor_s);
  }
  int whole_calls(int calls) const override { return one_call_ ? 1 : calls; }
  int unit_of(int) const override { return 1; }
  json card() override { return nullptr; }

 private:
  const FreshProblem& first() const { return sets_.at(0); }

  HostSets sets_;
  int variant_;
  Stream stream_;
  bool one_call_;         // a group is one call behind a flush
  std::size_t turn_ = 0;  // calls so far
  std::vector<std::vector<std::byte>> outputs_;
};

// Cost of timing nothing, so that groups can be made long against it.
double clock_floor_s() {
  double best = 1.0;
  for (int i = 0; i < 2000; ++i) {
    const auto start = Clock::now();
    const auto stop = Clock::now();
    best = std::min(best, seconds(stop - start));
  }
  return best;
}

// Of this process, for as long as it lives.
const RunQueueClock& own_run_queue() {
  static const RunQueueClock queue("self");
  return queue;
}

}  // namespace

ThreadClocks::ThreadClocks()
    : cpu_s_(0.0), waited_s_(own_run_queue().read().waited_s), switches_(involuntary_switches()) {
  cpu_s_ = process_cpu_s();  // last: what is read before it is not in it
}
void ThreadClocks::add_to(TimedGroups& groups) const {
  groups.cpu_s += process_cpu_s() - cpu_s_;
  // A thread that ended takes its count along.
  groups.wait_s += std::max(0.0, own_run_queue().read().waited_s - waited_s_);
  groups.preempted += involuntary_switches() - switches_;
}

std::uint64_t group_seed(std::uint64_t block_seed, int group) {
  return mix(block_seed, static_cast<std::uint64_t>(static_cast<std::int64_t>(group)) + 0x51ULL);
}

std::size_t find_case(const OpInfo& op, const std::string& name) {
  std::string names;
  for (std::size_t i = 0; i < op.case_names.size(); ++i) {
    if (op.case_names[i] == name) return i;
    names += (names.empty() ? "" : ", ") + op.case_names[i];
  }
  throw UserError("op " + op.name + " has no case '" + name + "': valid are " +
                  (names.empty() ? "none" : names));
}

FreshProblem::FreshProblem(const OpInfo& op, std::size_t case_index) {
  if (op.make_problem == nullptr)
    throw UserError("op " + op.name + " has no cases of its own to time");
  problem_ = op.make_problem(case_index, 0);
  const auto& fields = problem_->fields();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const Field& f = fields[i];
    accumulates_ = accumulates_ || f.dir == Dir::kInOut;
    const bool signed_values =
        f.dtype == DType::kF32 || f.dtype == DType::kF16 || f.dtype == DType::kI8;
    if (f.dir != Dir::kIn || !signed_values || f.name.ends_with("scales")) continue;
    Fresh fresh{i, std::min(f.count, kFreshElements), {}};
    fresh.pristine.assign(f.data, f.data + fresh.count * dtype_bytes(f.dtype));
    fresh_.push_back(std::move(fresh));
  }
}

void FreshProblem::freshen(std::uint64_t seed) {
  auto& fields = problem_->fields();
  for (const Fresh& fresh : fresh_) {
    Field& f = fields[fresh.field];
    Rng rng(seed);
    std::uint64_t signs = 0;
    for (std::size_t i = 0; i < fresh.count; ++i) {
      if (i % 64 == 0) signs = rng.next();
      const bool flip = (signs >> (i % 64) & 1U) != 0;
      if (f.dtype == DType::kI8) {
        const auto v = static_cast<std::int8_t>(fresh.pristine[i]);
        f.data[i] = static_cast<std::byte>(flip && v != -128 ? -v : v);
      } else {
        const std::size_t width = dtype_bytes(f.dtype);
        std::memcpy(f.data + i * width, fresh.pristine.data() + i * width, width);
        // Little endian: the sign is the top bit of the last byte.
        if (flip) f.data[i * width + width - 1] ^= std::byte{0x80};
      }
    }
  }
  problem_->reset();
}

std::uint64_t FreshProblem::input_hash() const {
  std::uint64_t h = 0;
  for (const Field& f : problem_->fields()) {
    if (f.dir == Dir::kIn) h = hash_bytes(h, f.data, f.bytes());
  }
  return h;
}

std::uint64_t FreshProblem::fresh_hash() const {
  std::uint64_t h = 0;
  const auto& fields = problem_->fields();
  for (const Fresh& fresh : fresh_)
    h = hash_bytes(h, fields[fresh.field].data, fresh.pristine.size());
  return h;
}

std::vector<std::vector<std::byte>> FreshProblem::copy_outputs() const {
  std::vector<std::vector<std::byte>> out;
  for (const Field& f : problem_->fields()) {
    if (f.dir != Dir::kIn) out.emplace_back(f.data, f.data + f.bytes());
  }
  return out;
}

// Requests and answers are lines; outputs follow their line as raw bytes.
//   calibrate T BLOCK_US      -> groups G calls C unit U (any number of U calls can be a group)
//   block T GROUPS CALLS SEED WARM EXTRA -> done WALL CPU WAIT EVENT PREEMPTED INTACT GUARD (seconds as hex floats, GUARD "-" when whole)
//   card                      -> one line of JSON: what each tier says of the card, by tier
//   outputs T                 -> bytes N1 N2 ..  then the bytes
//   quit                      -> inputs intact|changed
int serve_arm(const OpInfo& op,
              const std::string& switch_value,
              const ChildOptions& options,
              int in,
              int out) {
  const int variant = op.find(switch_value);
  if (variant < 0) throw UserError(op.switch_name + "=" + switch_value + ": no such variant");
  const bool on_card = options.backend == Backend::kCuda;
  // On a card the sets are filled by all cores first, and the driver's own threads stay free.
  bool pinned = !on_card && pin(options.cpus);
  std::unique_ptr<HostPool> pool;
  if (options.threads > 1) pool = std::make_unique<HostPool>(options.threads);
  const Stream stream{nullptr, pool.get()};

  std::vector<std::unique_ptr<TierTimer>> tiers;
  std::vector<std::uint64_t> hashes;
  json fallback = json::array();
  for (const std::string& name : options.tiers) {
    const std::size_t index = find_case(op, name);
    if (on_card) {
      tiers.push_back(std::make_unique<CardTimer>(op, index, variant, options.regime));
    } else {
      tiers.push_back(std::make_unique<HostTimer>(op, index, variant, stream, options.regime));
    }
    const Why why = tiers.back()->ineligible();
    fallback.push_back(why == nullptr ? "" : why);
    if (why == nullptr) tiers.back()->prepare();
    hashes.push_back(tiers.back()->input_hash());
  }
  if (on_card) pinned = pin(options.cpus);
  const double floor_s = clock_floor_s();
  const auto answer = [&](const std::string& line) {
    write_all(out, (line + "\n").data(), line.size() + 1);
  };
  answer(json{{"switch", switch_value},
              {"fallback", fallback},
              {"clock_floor_s", floor_s},
              {"pinned", pinned}}
             .dump());

  LineReader reader(in);
  std::string line;
  while (reader.next(line)) {
    char verb[16] = {};
    unsigned tier = 0;
    int consumed = 0;
    if (std::sscanf(line.c_str(), "%15s %u%n", verb, &tier, &consumed) < 1)
      throw InputError("empty request");
    const std::string what = verb;
    if (what == "card") {
      json said = json::object();
      for (std::size_t i = 0; i < tiers.size(); ++i) said[options.tiers[i]] = tiers[i]->card();
      answer(said.dump());
      continue;
    }
    if (what == "quit") {
      bool intact = true;
      for (std::size_t i = 0; i < tiers.size(); ++i) {
        intact = intact && tiers[i]->input_hash() == hashes[i];
      }
      answer(intact ? "inputs intact" : "inputs changed");
      return 0;
    }
    if (tier >= tiers.size()) throw InputError("request names tier " + std::to_string(tier));
    const char* rest = line.c_str() + consumed;
    if (what == "calibrate") {
      int block_us = 0;
      if (std::sscanf(rest, "%d", &block_us) != 1) throw InputError("calibrate without a time");
      const double block_s = block_us * 1e-6;
      const double group_s = tiers[tier]->least_group_s(block_s, floor_s);
      int calls = tiers[tier]->whole_calls(1);
      double each = 0.0;
      for (int round = 0; round < 40; ++round) {
        const auto r =
            tiers[tier]->run(1, calls, 0xCA11 + static_cast<std::uint64_t>(round), round == 0);
        const double took = r.event_s > 0.0 ? r.event_s : r.wall_s;
        each = took / calls;
        if (took >= group_s || calls > (1 << 20)) break;
        const double want = each > 0.0 ? group_s * 1.2 / each : calls * 2.0;
        const int next = tiers[tier]->whole_calls(
            static_cast<int>(std::min(std::max(want, calls + 1.0), calls * 8.0)));
        if (next <= calls) break;  // no more calls fit a group
        calls = next;
      }
      const int groups = std::max(1, static_cast<int>(block_s / std::max(each * calls, 1e-9)) + 1);
      answer("groups " + std::to_string(groups) + " calls " + std::to_string(calls) + " unit " +
             std::to_string(tiers[tier]->unit_of(calls)));
    } else if (what == "block") {
      int groups = 0;
      int calls = 0;
      unsigned long long seed = 0;
      int warm = 1;
      int extra = 0;
      if (std::sscanf(rest, "%d %d %llu %d %d", &groups, &calls, &seed, &warm, &extra) != 5 ||
          groups < 1 || calls < 1 || extra < 0) {
        throw InputError("malformed block request");
      }
      const auto r = tiers[tier]->run(groups, calls + extra, seed, warm != 0);
      const std::string guard = tiers[tier]->broken_guard();
      char text[160];
      std::snprintf(text,
                    sizeof text,
                    "done %a %a %a %a %d %d ",
                    r.wall_s,
                    r.cpu_s,
                    r.wait_s,
                    r.event_s,
                    r.preempted,
                    r.inputs_intact ? 1 : 0);
      answer(text + (guard.empty() ? std::string("-") : guard));
    } else if (what == "outputs") {
      const auto outputs = tiers[tier]->outputs();
      std::string header = "bytes";
      for (const auto& o : outputs) header += " " + std::to_string(o.size());
      answer(header);
      for (const auto& o : outputs) write_all(out, o.data(), o.size());
    } else {
      throw InputError("unknown request " + what);
    }
  }
  return 0;
}

}  // namespace assay
