// assay replay: cache policies against routing traces.
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "engine/main/command.h"
#include "engine/main/plot_runner.h"
#include "kernels/base/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/program.h"
#include "replay/report.h"

namespace assay {
namespace {

using namespace replay;

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items(1);
  for (const char c : text) {
    if (c == ',') {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  std::erase(items, "");
  return items;
}

template <class T>
T parse_number(const std::string& text, const char* flag) {
  T value{};
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value);
  if (r.ec != std::errc{} || r.ptr != text.data() + text.size())
    throw UserError(std::string(flag) + " '" + text + "' is not a number");
  return value;
}

template <class T>
T one_of(const std::string& text, const char* flag, std::initializer_list<T> values) {
  std::string valid;
  for (const T v : values) {
    if (text == to_string(v)) return v;
    valid += std::string(valid.empty() ? "" : ", ") + to_string(v);
  }
  throw UserError(std::string(flag) + " '" + text + "': valid are " + valid);
}

// A cache size: the slots, and the residency it stands for.
struct Size {
  std::uint64_t slots;
  double residency;
};

struct Flags {
  std::vector<std::string> traces;
  std::string policies;
  std::string residency;
  std::string slots;
  std::string cache_gib;
  std::string partition = "global";
  std::string mode;
  std::string split = "all";
  std::string cost;
  std::string plot;
  std::string json;
  int experts = 0;
  std::uint64_t steps = 0;
  std::uint64_t warmup = 0;
  double shards_rate = 0.0;
  std::uint64_t seed = 1;
  int resamples = 1000;
  bool curve = false;
  bool allocate = false;
  bool facts = false;
};

std::vector<Size> cache_sizes(const Flags& f, const Sequence& s, Partition partition) {
  const double objects = s.objects();
  const auto layers = static_cast<std::uint64_t>(s.geometry().layers);
  std::vector<Size> sizes;
  for (const auto& text : split_list(f.slots)) {
    const auto n = parse_number<std::uint64_t>(text, "--slots");
    sizes.push_back({n, static_cast<double>(n) / objects});
  }
  for (const auto& text : split_list(f.cache_gib)) {
    const auto gib = parse_number<double>(text, "--cache-gib");
    if (s.expert_bytes() == 0)
      throw UserError(
          "--cache-gib: the trace does not say how large an expert is; use --slots or --residency");
    if (!(gib > 0.0)) throw UserError("--cache-gib '" + text + "' must be above 0");
    const auto n = static_cast<std::uint64_t>(gib * 0x1p30 / static_cast<double>(s.expert_bytes()));
    sizes.push_back({n, static_cast<double>(n) / objects});
  }
  std::string residency = f.residency;
  if (residency.empty() && sizes.empty())
    residency = f.plot.empty() ? "0.25,0.5" : "0.125,0.25,0.33,0.5,0.75";
  for (const auto& text : split_list(residency)) {
    const auto share = parse_number<double>(text, "--residency");
    if (!(share > 0.0 && share <= 1.0))
      throw UserError("--residency '" + text + "' must be above 0 and at most 1");
    const auto slots =
        partition == Partition::kLayer
            ? static_cast<std::uint64_t>(std::llround(share * s.geometry().experts)) * layers
            : static_cast<std::uint64_t>(std::llround(share * objects));
    sizes.push_back({slots, share});
  }
  if (sizes.empty()) throw UserError("no cache size: --residency or --slots is empty");
  return sizes;
}

// Slots a layer for every size, chosen on the train split when one is being withheld.
std::vector<Allocation> allocate(const Flags& f,
                                 Sequence& sequence,
                                 Sequence* train,
                                 const std::vector<Size>& sizes,
                                 Mode mode) {
  CurveOptions options{.mode = mode, .partition = Partition::kLayer, .warmup = f.warmup};
  const CurveSet scored = compute_curves(sequence, options);
  CurveSet chosen;
  if (train != nullptr) {
    options.warmup = std::min(f.warmup, train->steps() - 1);
    chosen = compute_curves(*train, options);
  }
  const auto& choose_on = train != nullptr ? chosen.lru_layers : scored.lru_layers;
  const auto layers = static_cast<std::uint64_t>(sequence.geometry().layers);
  const auto least =
      static_cast<std::uint32_t>(mode == Mode::kGroup ? sequence.geometry().top_k : 1);
  const auto steps = static_cast<double>(sequence.steps() - f.warmup);
  std::vector<Allocation> out;
  for (const Size& size : sizes) {
    Allocation a;
    a.residency = size.residency;
    a.slots = size.slots / layers * layers;
    a.layers = allocate_slots(choose_on, a.slots, least);
    for (std::size_t l = 0; l < layers; ++l) {
      a.even_misses_per_step +=
          static_cast<double>(scored.lru_layers[l].misses(
              std::min<std::uint64_t>(a.slots / layers, sequence.geometry().experts))) /
          steps;
      a.chosen_misses_per_step +=
          static_cast<double>(scored.lru_layers[l].misses(a.layers[l])) / steps;
    }
    a.chosen_on = train != nullptr ? "train" : f.split;
    a.scored_on = f.split;
    out.push_back(std::move(a));
  }
  return out;
}

int run(int argc, char** argv) {
  Flags f;
  std::string forms;
  for (const PolicyEntry* p : all_policies())
    forms += std::string(forms.empty() ? "" : " ") + p->forms;
  CommandLine app("Replay routing traces against cache policies.\nPolicies: " + forms,
                  "assay replay",
                  "assay replay traces/tiny-capture.mrt --policies lru,decay32,belady --residency "
                  "0.25,0.5 --plot out");
  app.add_option("traces",
                 f.traces,
                 "inputs: .mrt .jsonl .csv .ids .oracleGeneral; several are several conversations")
      .required()
      .type_name("T..");
  app.add_option(
         "--policies",
         f.policies,
         "comma list; default lru,decay32,belady (plain: lru,lfu,fifo,sieve,s3fifo,arc,belady)")
      .type_name("LIST");
  app.add_option(
         "--residency", f.residency, "cache sizes as shares of all experts; default 0.25,0.5")
      .type_name("LIST");
  app.add_option("--slots", f.slots, "cache sizes in experts").type_name("LIST");
  app.add_option("--cache-gib", f.cache_gib, "cache sizes in GiB").type_name("LIST");
  app.add_option("--partition", f.partition, "global, layer (each layer has slots / layers)")
      .type_name("P")
      .show_default();
  app.add_option("--mode", f.mode, "group (default), plain (default for flat logs)").type_name("M");
  app.add_option("--experts", f.experts, "flat logs: experts a layer").type_name("N");
  app.add_option("--steps", f.steps, "replay only the first steps; 0: all").type_name("N");
  app.add_option("--warmup", f.warmup, "steps that fill the cache and are not counted")
      .type_name("N");
  app.add_option("--split", f.split, "all, train, held-out").type_name("S").show_default();
  app.add_flag("--curve", f.curve, "exact misses of LRU and of the optimum at every size");
  app.add_option("--shards-rate", f.shards_rate, "also the sampled LRU curve, with its error")
      .type_name("R");
  app.add_flag("--allocate", f.allocate, "search the slots of each layer");
  app.add_flag("--facts", f.facts, "routing facts of the trace");
  app.add_option("--cost", f.cost, "cost model: adds expected tokens/s").type_name("FILE");
  app.add_option("--plot", f.plot, "write plots and a report page into this folder")
      .type_name("DIR");
  app.add_option("--resamples", f.resamples, "of the bootstrap over conversations")
      .type_name("N")
      .show_default();
  app.add_option("--rng-seed", f.seed, "seed of the bootstrap").type_name("N").show_default();
  app.add_option("--json", f.json, "write the report as JSON to a file, - is stdout")
      .type_name("PATH");
  app.parse(argc, argv);

  const auto partition =
      one_of(f.partition, "--partition", {Partition::kGlobal, Partition::kLayer});
  std::optional<Split> split;
  if (f.split != "all") split = one_of(f.split, "--split", {Split::kTrain, Split::kHeldOut});
  if (f.experts < 0 || f.experts > 65535) throw UserError("--experts must be 1 to 65535");
  if (f.resamples < 1 || f.resamples > 1000000) throw UserError("--resamples must be 1 to 1000000");
  const std::optional<CostModel> cost =
      f.cost.empty() ? std::nullopt : std::optional(load_cost_model(f.cost));

  Sequence sequence(f.traces, {.split = split, .max_steps = f.steps, .experts = f.experts});
  if (sequence.flat() && partition == Partition::kLayer && f.experts == 0)
    throw UserError("--partition layer on a flat access log needs --experts");
  const Mode mode = f.mode.empty() ? (sequence.flat() ? Mode::kPlain : Mode::kGroup)
                                   : one_of(f.mode, "--mode", {Mode::kPlain, Mode::kGroup});
  std::string policies = f.policies;
  if (!app.given("--policies")) {
    policies = mode == Mode::kPlain ? "lru,lfu,fifo,sieve,s3fifo,arc,belady" : "lru,decay32,belady";
    if (!f.plot.empty() && mode == Mode::kGroup) {
      policies =
          "lru,lfu,sieve,s3fifo,arc,second-miss:64,decay32,decay:512:2,static-hindsight,belady:1,"
          "belady:2,belady:4,belady:8,belady:16,belady:32,belady:64,belady";
    }
  }
  const auto names = split_list(policies);
  if (names.empty()) throw UserError("--policies: the list is empty; valid are " + forms);

  Report report;
  report.paths = f.traces;
  report.geometry = sequence.geometry();
  report.label = sequence.label();
  report.steps = sequence.steps();
  report.conversations = sequence.conversations().size();
  report.flat = sequence.flat();
  report.sealed = sequence.sealed();
  report.expert_bytes = sequence.expert_bytes();
  report.warmup = f.warmup;
  report.seed = f.seed;
  report.resamples = f.resamples;
  report.split = f.split;
  report.cost = cost;
  if (f.steps != 0 && f.steps > sequence.steps())
    std::cerr << "assay replay: the input has only " << sequence.steps() << " steps\n";

  const auto sizes = cache_sizes(f, sequence, partition);
  std::vector<RunSpec> specs;
  bool needs_train = f.allocate && split == Split::kHeldOut;
  for (const Size& size : sizes) {
    for (const auto& name : names) {
      ReportRow row;
      row.spec = {parse_policy(name), mode, partition, size.slots};
      row.residency = size.residency;
      row.in_sample =
          row.spec.policy.in_sample || (row.spec.policy.train && split != Split::kHeldOut);
      needs_train = needs_train || row.spec.policy.train;
      specs.push_back(row.spec);
      report.rows.push_back(std::move(row));
    }
  }
  std::optional<Sequence> train;
  if (needs_train)
    train.emplace(f.traces, SequenceOptions{.split = Split::kTrain, .experts = f.experts});

  {
    Progress bar("replaying", 1000);
    const auto results = run_policies(
        sequence,
        train ? &*train : nullptr,
        specs,
        f.warmup,
        [&](std::uint64_t done, std::uint64_t total) { bar.update(done * 1000 / total); });
    for (std::size_t i = 0; i < results.size(); ++i) report.rows[i].result = results[i];
  }
  score_rows(report);
  if (f.facts || !f.plot.empty()) report.facts = routing_facts(sequence);
  if (f.curve || f.shards_rate > 0.0 || !f.plot.empty()) {
    Progress bar("curves", sequence.steps());
    auto set = compute_curves(sequence,
                              {.mode = mode,
                               .partition = partition,
                               .warmup = f.warmup,
                               .lru = true,
                               .opt = f.curve || !f.plot.empty(),
                               .shards_rate = f.shards_rate},
                              [&](std::uint64_t done, std::uint64_t) { bar.update(done); });
    report.curves = std::move(set.curves);
  }
  if (f.allocate)
    report.allocations =
        allocate(f, sequence, split == Split::kHeldOut ? &*train : nullptr, sizes, mode);

  const std::string document = to_json(report);
  write_json(f.json, document);
  if (f.json != "-") std::cout << to_table(report);
  if (!f.plot.empty()) {
    std::error_code error;
    std::filesystem::create_directories(f.plot, error);
    if (error) throw Error(Exit::kCheckFailed, f.plot + ": cannot create: " + error.message());
    write_file_atomic(f.plot + "/replay.json", document + "\n");
    run_plot_script("plot_replay.py", {f.plot + "/replay.json", f.plot});
  }
  return 0;
}

}  // namespace

extern const Command command_replay;
const Command command_replay{"replay", "traces", "cache policies against routing traces", run};

}  // namespace assay
