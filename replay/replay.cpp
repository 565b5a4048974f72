#include "replay/replay.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/base/rng.h"

namespace assay::replay {

std::string RunSpec::describe() const {
  return policy.name + ", " + to_string(mode) + ", " + to_string(partition) + ", " +
         std::to_string(slots) + " slots";
}

std::uint64_t RunResult::percentile(double share) const {
  std::uint64_t total = 0;
  for (const auto n : histogram) total += n;
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(total)));
  std::uint64_t sum = 0;
  for (std::size_t m = 0; m < histogram.size(); ++m) {
    sum += histogram[m];
    if (sum >= wanted && sum != 0) return m;
  }
  return 0;
}

Interval bootstrap(std::size_t conversations,
                   std::uint64_t seed,
                   int resamples,
                   const std::function<double(const std::vector<std::uint32_t>&)>& statistic) {
  std::vector<std::uint32_t> weights(conversations, 1);
  if (conversations < 2) {
    const double v = statistic(weights);
    return {v, v};
  }
  Rng rng(seed);
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(resamples));
  for (int i = 0; i < resamples; ++i) {
    std::fill(weights.begin(), weights.end(), 0U);
    for (std::size_t j = 0; j < conversations; ++j) ++weights[rng.below(conversations)];
    const double v = statistic(weights);
    if (std::isfinite(v)) values.push_back(v);
  }
  if (values.empty()) return {std::nan(""), std::nan("")};
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<std::size_t>(
        std::lround(q * static_cast<double>(values.size() - 1)))];
  };
  return {at(0.025), at(0.975)};
}

Interval misses_interval(const RunResult& result, std::uint64_t seed, int resamples) {
  std::vector<RunResult::PerConversation> counted;
  for (const auto& c : result.conversations) {
    if (c.steps != 0) counted.push_back(c);
  }
  return bootstrap(counted.size(), seed, resamples, [&](const std::vector<std::uint32_t>& weights) {
    double misses = 0.0;
    double steps = 0.0;
    for (std::size_t i = 0; i < counted.size(); ++i) {
      misses += static_cast<double>(weights[i]) * static_cast<double>(counted[i].misses);
      steps += static_cast<double>(weights[i]) * static_cast<double>(counted[i].steps);
    }
    return misses / steps;
  });
}

Setup setup_for(Sequence& sequence, Sequence* train, const RunSpec& spec) {
  const TraceGeometry& g = sequence.geometry();
  if (spec.mode == Mode::kGroup && sequence.flat()) {
    throw UserError("group mode needs a trace with layers and steps; " + sequence.paths()[0] +
                    " is a flat access log: use --mode plain");
  }
  if (spec.mode == Mode::kGroup ? !spec.policy.group_mode : !spec.policy.plain_mode) {
    throw UserError("policy '" + spec.policy.name + "' has no " + to_string(spec.mode) + " mode");
  }
  if (spec.policy.train && train == nullptr)
    throw UserError("policy '" + spec.policy.name + "' needs a train split in the trace");
  const bool per_layer = spec.partition == Partition::kLayer;
  const auto layers = static_cast<std::uint64_t>(g.layers);
  const std::uint64_t capacity = per_layer ? spec.slots / layers : spec.slots;
  const std::string unit = per_layer
                               ? std::to_string(spec.slots) + " slots give each of " +
                                     std::to_string(layers) + " layers " + std::to_string(capacity)
                               : std::to_string(capacity) + " slots";
  if (capacity == 0) throw UserError(unit + ": a cache needs at least one slot");
  if (spec.mode == Mode::kGroup && capacity < static_cast<std::uint64_t>(g.top_k)) {
    throw UserError(unit + ", but group mode needs at least top-k = " + std::to_string(g.top_k) +
                    ", because no member of a group may be evicted by its own group");
  }
  if (capacity > (std::uint64_t{1} << 28)) throw UserError(unit + ": above 2^28");
  Setup s;
  s.mode = spec.mode;
  s.partition = spec.partition;
  // More slots than objects behave like exactly as many, so arrays need not be larger.
  s.objects = per_layer ? static_cast<std::uint32_t>(g.experts) : sequence.objects();
  s.capacity = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      capacity, std::max<std::uint64_t>(s.objects, static_cast<std::uint64_t>(g.top_k))));
  s.layers = per_layer ? 1 : static_cast<std::uint32_t>(g.layers);
  s.experts = static_cast<std::uint32_t>(g.experts);
  s.caches = per_layer ? static_cast<std::uint32_t>(g.layers) : 1;
  s.top_k = static_cast<std::uint32_t>(g.top_k);
  s.step_places = std::uint64_t{sequence.groups_per_step()} * s.top_k;
  s.sequence = &sequence;
  s.train = train;
  return s;
}

std::vector<RunResult> run_policies(Sequence& sequence,
                                    Sequence* train,
                                    const std::vector<RunSpec>& specs,
                                    std::uint64_t warmup,
                                    const ProgressFn& progress) {
  if (specs.empty()) throw UserError("no policy to run");
  if (warmup >= sequence.steps()) {
    throw UserError("a warm-up of " + std::to_string(warmup) + " steps leaves none of " +
                    std::to_string(sequence.steps()) + " to count");
  }
  std::vector<std::unique_ptr<Simulator>> simulators;
  std::vector<RunResult> results(specs.size());
  const auto layers = static_cast<std::size_t>(sequence.geometry().layers);
  bool oracle = false;
  bool weights = false;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Setup s = setup_for(sequence, train, specs[i]);
    simulators.push_back(specs[i].policy.make(s));
    oracle = oracle || specs[i].policy.oracle;
    weights = weights || specs[i].policy.weights;
    auto& r = results[i];
    r.slots =
        specs[i].partition == Partition::kLayer ? specs[i].slots / layers * layers : specs[i].slots;
    r.steps = sequence.steps() - warmup;
    r.histogram.assign(static_cast<std::size_t>(sequence.geometry().top_k) + 1, 0);
    r.layer_misses.assign(layers, 0);
    r.conversations.resize(sequence.conversations().size());
  }
  // The oracle's backward pass and the forward pass share one bar.
  const std::uint64_t total = sequence.steps() * (oracle ? 2 : 1);
  std::unique_ptr<NextUse> next;
  if (oracle) {
    struct Context {
      const ProgressFn& progress;
      std::uint64_t total;
    } context{progress, total};
    next = std::make_unique<NextUse>(
        sequence,
        [](void* c, std::uint64_t done) {
          const auto* x = static_cast<Context*>(c);
          if (x->progress) x->progress(done, x->total);
        },
        &context);
  }
  Block block;
  std::vector<std::uint16_t> misses;
  for (std::uint64_t first = 0; first < sequence.steps(); first += block.steps) {
    sequence.decode(first, sequence.block_steps(), weights, block);
    if (next != nullptr) next->fill(block);
    misses.resize(block.groups());
    const std::uint32_t per_step = block.groups_per_step;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      simulators[i]->run(block, misses.data());
      RunResult& r = results[i];
      std::size_t g = 0;
      std::uint32_t begin = 0;
      for (std::size_t s = 0; s < block.steps; ++s) {
        const bool counted = first + s >= warmup;
        std::uint64_t step_misses = 0;
        const std::uint32_t step_begin = begin;
        for (std::uint32_t l = 0; l < per_step; ++l, ++g) {
          const std::uint32_t size = block.group_end[g] - begin;
          if (counted && size != 0) {
            step_misses += misses[g];
            ++r.histogram[misses[g]];
            const std::size_t layer = per_step != 1 ? l : sequence.layer_of(block.objects[begin]);
            r.layer_misses[layer] += misses[g];
          }
          begin = block.group_end[g];
        }
        if (!counted) continue;
        auto& c = r.conversations[block.conversation[s]];
        ++c.steps;
        c.accesses += begin - step_begin;
        c.misses += step_misses;
      }
    }
    if (progress) progress(total - sequence.steps() + first + block.steps, total);
  }
  for (auto& r : results) {
    for (const auto& c : r.conversations) {
      r.accesses += c.accesses;
      r.misses += c.misses;
    }
  }
  return results;
}

}  // namespace assay::replay
