// assay bench-replay: accesses a second of replay's loops on one core, over blocks that lie decoded in memory.
#include <algorithm>
#include <functional>
#include <iostream>
#include <list>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <time.h>

#include "engine/main/command.h"
#include "engine/main/record_options.h"
#include "kernels/base/command_line.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "kernels/base/rng.h"
#include "kernels/base/sha256.h"
#include "replay/curves.h"
#include "replay/temporary_path.h"
#include "traces/edit.h"

namespace assay {
namespace {

using namespace replay;
using nlohmann::json;

constexpr const char* kPeerNote =
    "both peers are loops of this program, written from the textbook and sharing no code with "
    "replay/: peer-list is LRU over "
    "std::list and std::unordered_map, peer-array LRU over an array indexed by object. No cache "
    "simulator library was at hand; "
    "the goals are such a library's figures on another machine of this class";

// A trace in memory, cut into blocks as a replay sees it.
struct Loaded {
  Sequence sequence;
  std::vector<Block> blocks;
  std::uint64_t accesses = 0;

  Loaded(const std::string& path, std::uint64_t steps, bool next_use)
      : sequence({path}, {.max_steps = steps}) {
    std::unique_ptr<NextUse> next;
    if (next_use) next = std::make_unique<NextUse>(sequence);
    for (std::uint64_t first = 0; first < sequence.steps(); first += blocks.back().steps) {
      blocks.emplace_back();
      sequence.decode(first, sequence.block_steps(), false, blocks.back());
      if (next) next->fill(blocks.back());
      accesses += blocks.back().objects.size();
    }
  }
};

// Time that this thread ran: on a shared machine the clock on the wall counts other programs as well.
double thread_s() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// ---- peers: the textbook's LRU, nothing of replay/ ----

std::uint64_t peer_list(const std::vector<Block>& blocks, std::size_t slots) {
  std::list<std::uint32_t> order;  // most recent first
  std::unordered_map<std::uint32_t, std::list<std::uint32_t>::iterator> where;
  where.reserve(slots + 1);
  std::uint64_t misses = 0;
  for (const auto& b : blocks) {
    for (const std::uint32_t o : b.objects) {
      const auto it = where.find(o);
      if (it != where.end()) {
        order.splice(order.begin(), order, it->second);
        continue;
      }
      ++misses;
      if (where.size() == slots) {
        where.erase(order.back());
        order.pop_back();
      }
      order.push_front(o);
      where.emplace(o, order.begin());
    }
  }
  return misses;
}

std::uint64_t peer_array(const std::vector<Block>& blocks, std::size_t slots, std::size_t objects) {
  struct Link {
    std::uint32_t newer, older;
  };
  const auto end = static_cast<std::uint32_t>(objects);
  std::vector<Link> links(objects + 1, Link{end, end});
  std::vector<std::uint8_t> in(objects, 0);
  std::size_t used = 0;
  std::uint64_t misses = 0;
  const auto unlink = [&](std::uint32_t o) {
    links[links[o].newer].older = links[o].older;
    links[links[o].older].newer = links[o].newer;
  };
  for (const auto& b : blocks) {
    for (const std::uint32_t o : b.objects) {
      if (in[o] != 0) {
        unlink(o);
      } else {
        ++misses;
        in[o] = 1;
        if (used == slots) {
          const std::uint32_t victim = links[end].newer;
          unlink(victim);
          in[victim] = 0;
        } else {
          ++used;
        }
      }
      links[o] = {end, links[end].older};
      links[links[end].older].newer = o;
      links[end].older = o;
    }
  }
  return misses;
}

// ---- arms ----

struct Arm {
  std::string name;
  std::string kind;
  Mode mode = Mode::kPlain;
  Partition partition = Partition::kGlobal;
  std::uint64_t objects = 0;
  std::uint64_t slots = 0;
  std::uint64_t accesses = 0;
  double goal_per_s = 0.0;  // 0: none
  std::function<std::uint64_t()> run =
      {};                          // returns what must not be optimised away, the misses if any
  std::vector<double> per_s = {};  // by round
  double best() const { return *std::max_element(per_s.begin(), per_s.end()); }
  double median() const {
    auto v = per_s;
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  }
};

Arm policy_arm(Loaded& t, const char* policy, Mode mode, std::uint64_t slots, double goal) {
  Arm a{.name = policy, .kind = "policy", .mode = mode, .slots = slots, .goal_per_s = goal};
  a.objects = t.sequence.objects();
  a.accesses = t.accesses;
  a.run = [&t, spec = RunSpec{parse_policy(policy), mode, Partition::kGlobal, slots}] {
    const auto simulator = spec.policy.make(setup_for(t.sequence, nullptr, spec));
    std::vector<std::uint16_t> misses;
    std::uint64_t total = 0;
    for (const auto& b : t.blocks) {
      misses.resize(b.groups());
      simulator->run(b, misses.data());
      total = std::accumulate(misses.begin(), misses.end(), total);
    }
    return total;
  };
  return a;
}

Arm curve_arm(Loaded& t, const char* name, Mode mode, Partition partition, double goal) {
  Arm a{.name = name, .kind = "curve", .mode = mode, .partition = partition, .goal_per_s = goal};
  a.objects = t.sequence.objects();
  a.accesses = t.accesses;
  a.run = [&t, spec = RunSpec{parse_policy("lru"), mode, partition, t.sequence.objects()}] {
    const auto pass = make_lru_pass(setup_for(t.sequence, nullptr, spec));
    for (const auto& b : t.blocks) pass->run(b, 0);
    return pass->counts()[0].at[0];
  };
  return a;
}

std::vector<Arm> make_arms(Loaded& trace, Loaded& composed) {
  const std::uint64_t objects = trace.sequence.objects();
  const std::uint64_t half = objects / 2;
  std::vector<Arm> arms;
  const auto plain = [&](const char* name, const char* kind, std::uint64_t slots, auto run) {
    arms.push_back({.name = name,
                    .kind = kind,
                    .objects = objects,
                    .slots = slots,
                    .accesses = trace.accesses,
                    .run = run});
  };
  plain("peer-list", "peer", half, [&trace, half] { return peer_list(trace.blocks, half); });
  plain("peer-array", "peer", half, [&trace, half, objects] {
    return peer_array(trace.blocks, half, objects);
  });
  plain("read", "yardstick", 0, [&trace] {
    std::uint64_t sum = 0;
    for (const auto& b : trace.blocks)
      sum = std::accumulate(b.objects.begin(), b.objects.end(), sum);
    return sum;
  });
  plain("count", "yardstick", 0, [&trace, objects] {
    std::vector<std::uint32_t> uses(objects, 0);
    for (const auto& b : trace.blocks) {
      for (const std::uint32_t o : b.objects) ++uses[o];
    }
    return std::uint64_t{*std::max_element(uses.begin(), uses.end())};
  });
  plain("decode", "yardstick", 0, [&trace] {
    Block b;
    std::uint64_t n = 0;
    Sequence& s = trace.sequence;
    for (std::uint64_t first = 0; first < s.steps(); first += b.steps) {
      s.decode(first, s.block_steps(), false, b);
      n += b.objects.back();
    }
    return n;
  });
  const struct {
    const char* policy;
    double goal;
  } singles[] = {{"lru", 65e6},
                 {"decay32", 20e6},
                 {"belady", 29e6},
                 {"fifo", 82e6},
                 {"arc", 56e6},
                 {"sieve", 35e6},
                 {"s3fifo", 27e6},
                 {"lfu", 20e6}};
  for (const auto& p : singles)
    arms.push_back(policy_arm(trace, p.policy, Mode::kPlain, half, p.goal));
  for (const char* policy : {"lru", "decay32", "successor", "belady"})
    arms.push_back(policy_arm(trace, policy, Mode::kGroup, half, 0.0));
  for (const Mode mode : {Mode::kPlain, Mode::kGroup}) {
    arms.push_back(curve_arm(trace, "lru-curve", mode, Partition::kLayer, 150e6));
    arms.push_back(curve_arm(composed, "lru-curve", mode, Partition::kGlobal, 30e6));
  }
  return arms;
}

int run(int argc, char** argv) {
  CommandLine app(
      "Accesses a second of replay's loops on one core: policies of one size, exact LRU curves of "
      "all\n"
      "sizes, peers and yardsticks, every arm once a round in an order drawn for each round.",
      "assay bench-replay",
      "assay bench-replay traces/tiny-capture.mrt");
  std::string path;
  std::uint64_t steps = 0;
  std::uint64_t seed = 1;
  int rounds = 7;
  RecordOptions record_to;
  app.add_option("trace", path, "a .mrt file of 64 experts a layer").required().type_name("T");
  app.add_option("--steps", steps, "use only the first steps").type_name("N");
  app.add_option("--rounds", rounds, "timed rounds").type_name("N").show_default();
  app.add_option("--rng-seed", seed, "of the order").type_name("N").show_default();
  add_record_options(app, record_to);
  app.parse(argc, argv);
  if (rounds < 3 || rounds > 1000) throw UserError("--rounds must be 3 to 1000");
  check_record_options(record_to);

  Loaded trace(path, steps, true);
  if (trace.sequence.flat()) throw UserError(path + ": bench-replay needs a trace with layers");
  const TemporaryPath wide;
  const TraceGeometry& g = trace.sequence.geometry();
  compose_trace(path, wide.get(), {.geometry = {30, 2 * g.experts, g.top_k}});
  Loaded composed(wide.get(), steps, false);
  auto arms = make_arms(trace, composed);

  Rng rng(seed);
  std::vector<std::size_t> order(arms.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::uint64_t> answers(arms.size(), 0);
  {
    Progress bar("timing", static_cast<std::uint64_t>(rounds) * arms.size());
    std::uint64_t done = 0;
    for (int r = 0; r < rounds; ++r) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
      for (const std::size_t i : order) {
        const double started = thread_s();
        const std::uint64_t answer = arms[i].run();
        arms[i].per_s.push_back(static_cast<double>(arms[i].accesses) / (thread_s() - started));
        if (r != 0 && answer != answers[i])
          throw CheckError(arms[i].name + ": two runs over the same trace differ");
        answers[i] = answer;
        bar.update(++done);
      }
    }
  }
  // The peers and the policy `lru` in plain mode are three programs for one rule.
  const auto found = std::find_if(arms.begin(), arms.end(), [](const Arm& a) {
    return a.name == "lru" && a.mode == Mode::kPlain;
  });
  const auto lru = static_cast<std::size_t>(found - arms.begin());
  if (answers[0] != answers[lru] || answers[1] != answers[lru]) {
    throw CheckError(fmt::format(
        "plain LRU misses {}, the peers {} and {}", answers[lru], answers[0], answers[1]));
  }

  json rows = json::array();
  for (const auto& a : arms) {
    rows.push_back({{"name", a.name},
                    {"kind", a.kind},
                    {"mode", to_string(a.mode)},
                    {"partition", to_string(a.partition)},
                    {"objects", a.objects},
                    {"slots", a.slots},
                    {"accesses", a.accesses},
                    {"best_per_s", a.best()},
                    {"median_per_s", a.median()},
                    {"of_list_peer", a.best() / arms[0].best()},
                    {"of_array_peer", a.best() / arms[1].best()},
                    {"goal_per_s", a.goal_per_s > 0.0 ? json(a.goal_per_s) : json(nullptr)}});
    if (!record_to.quiet()) {
      std::cout << fmt::format(
          "{:<11} {:<9} {:<5} {:<6} {:>5} objects  {:>7.1f} M/s best {:>7.1f} median  {:>5.2f} x "
          "list {:>5.2f} x array",
          a.name,
          a.kind,
          to_string(a.mode),
          to_string(a.partition),
          a.objects,
          a.best() / 1e6,
          a.median() / 1e6,
          a.best() / arms[0].best(),
          a.best() / arms[1].best());
      if (a.goal_per_s > 0.0) std::cout << fmt::format("  goal {:.0f}", a.goal_per_s / 1e6);
      std::cout << '\n';
    }
  }
  json record = record_frame("assay-replay-speed", host_device());
  record["trace"] = {{"label", trace.sequence.label()},
                     {"layers", g.layers},
                     {"experts", g.experts},
                     {"top_k", g.top_k},
                     {"steps", trace.sequence.steps()},
                     {"sha256", sha256_hex(read_file(path))}};
  record["rounds"] = rounds;
  record["peer_note"] = kPeerNote;
  record["arms"] = rows;
  store_record(record_to, std::move(record), "replay_speed.jsonl");
  return 0;
}

}  // namespace

extern const Command command_bench_replay;
const Command command_bench_replay{"bench-replay", "traces", "speed of the replay loops", run};

}  // namespace assay
