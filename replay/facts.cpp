#include "replay/facts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace assay::replay {
namespace {

constexpr std::uint64_t kNever = ~std::uint64_t{0};
constexpr std::array<std::uint64_t, 6> kWindows = {1, 8, 32, 128, 512, 2048};
constexpr std::size_t kReuseExact = 65536;  // reuse steps above it count as it

}  // namespace

RoutingFacts routing_facts(Sequence& sequence, const ProgressFn& progress) {
  RoutingFacts f;
  const auto layers = static_cast<std::size_t>(sequence.geometry().layers);
  const std::uint32_t objects = sequence.objects();
  std::vector<std::uint64_t> last(objects, kNever);  // step of the last use
  std::vector<std::uint32_t> last_conversation(objects, 0xFFFFFFFFU);
  std::vector<std::uint64_t> uses(objects, 0);
  std::vector<std::uint64_t> reuse(kReuseExact + 1, 0);
  std::vector<std::uint64_t> shared(layers, 0);
  std::vector<std::uint64_t> followed(
      layers, 0);  // accesses in steps that have one before them in their conversation
  std::array<std::uint64_t, kWindows.size()> distinct{};
  std::uint32_t conversation = 0xFFFFFFFFU;
  Block b;
  for (std::uint64_t first = 0; first < sequence.steps(); first += b.steps) {
    sequence.decode(first, sequence.block_steps(), false, b);
    std::uint32_t begin = 0;
    std::size_t g = 0;
    for (std::size_t s = 0; s < b.steps; ++s) {
      const std::uint64_t step = first + s;
      const bool has_before = b.conversation[s] == conversation;
      conversation = b.conversation[s];
      for (std::uint32_t l = 0; l < b.groups_per_step; ++l, ++g) {
        for (; begin < b.group_end[g]; ++begin) {
          const std::uint32_t o = b.objects[begin];
          const std::size_t layer = sequence.layer_of(o);
          const std::uint64_t before = last[o];
          ++uses[o];
          if (has_before) {
            ++followed[layer];
            if (before + 1 == step) ++shared[layer];
          }
          if (before != kNever) ++reuse[std::min<std::uint64_t>(step - before, kReuseExact)];
          for (std::size_t w = 0; w < kWindows.size(); ++w) {
            if (before == kNever || before / kWindows[w] != step / kWindows[w]) ++distinct[w];
          }
          last[o] = step;
        }
      }
    }
    f.accesses += b.objects.size();
    if (progress) progress(first + b.steps, sequence.steps());
  }
  f.steps = sequence.steps();
  std::uint64_t all_shared = 0;
  std::uint64_t all_followed = 0;
  for (std::size_t l = 0; l < layers; ++l) {
    all_shared += shared[l];
    all_followed += followed[l];
    f.layer_adjacent_share.push_back(
        followed[l] != 0 ? static_cast<double>(shared[l]) / static_cast<double>(followed[l]) : 0.0);
  }
  f.adjacent_share =
      all_followed != 0 ? static_cast<double>(all_shared) / static_cast<double>(all_followed) : 0.0;
  std::sort(uses.begin(), uses.end(), std::greater<>());
  f.objects_used = static_cast<std::uint32_t>(
      std::count_if(uses.begin(), uses.end(), [](std::uint64_t u) { return u != 0; }));
  for (const double top : {0.01, 0.05, 0.10, 0.25, 0.50}) {
    const auto n = static_cast<std::size_t>(std::ceil(top * objects));
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += uses[i];
    f.skew.emplace_back(top, static_cast<double>(sum) / static_cast<double>(f.accesses));
  }
  std::uint64_t reuses = 0;
  for (const auto n : reuse) reuses += n;
  for (const double share : {0.25, 0.50, 0.75, 0.90, 0.99}) {
    std::uint64_t sum = 0;
    std::uint64_t steps = 0;
    for (std::size_t d = 0; d < reuse.size() && reuses != 0; ++d) {
      sum += reuse[d];
      if (static_cast<double>(sum) >= share * static_cast<double>(reuses)) {
        steps = d;
        break;
      }
    }
    f.reuse_steps.emplace_back(share, steps);
  }
  for (std::size_t w = 0; w < kWindows.size(); ++w) {
    if (kWindows[w] > f.steps) break;
    const double windows = static_cast<double>(f.steps) / static_cast<double>(kWindows[w]);
    f.working_set.emplace_back(kWindows[w],
                               static_cast<double>(distinct[w]) / std::ceil(windows) / objects);
  }
  return f;
}

}  // namespace assay::replay
