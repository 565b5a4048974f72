#include "replay/search.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/rng.h"

namespace assay::replay {
namespace {

using Point = std::vector<double>;  // [axes] in 0..1

// Three digits: the name says all of a candidate, so what was scored is what a user runs.
std::string name_at(const Point& p) {
  std::string name = "successor";
  for (std::size_t i = 0; i < p.size(); ++i) {
    const SearchAxis& a = search_axes()[i];
    const double value =
        a.logarithmic ? a.low * std::pow(a.high / a.low, p[i]) : a.low + (a.high - a.low) * p[i];
    name += fmt::format(":{:.3g}", value);
  }
  return name;
}

// Scores names on one sequence, a few at a time so that a block is decoded once for all of them.
class Scorer {
 public:
  Scorer(Sequence sequence, const SearchOptions& options)
      : sequence_(std::move(sequence)), options_(options) {
    const auto r = run({"lru", "belady"});
    for (std::size_t s = 0; s < options.slots.size(); ++s) {
      lru_.push_back(r[s]);
      gap_.push_back(r[s] - r[options.slots.size() + s]);
      if (!(gap_.back() > 0.0)) {
        throw UserError(std::to_string(options.slots[s]) +
                        " slots: LRU misses no more than Belady, there is nothing to search for");
      }
    }
  }
  std::vector<Candidate> score(const std::vector<std::string>& names) {
    const auto misses = run(names);
    std::vector<Candidate> out;
    std::size_t at = 0;
    for (const auto& name : names) {
      Candidate c{name, {}, 0.0};
      for (std::size_t s = 0; s < lru_.size(); ++s, ++at) {
        c.closed.push_back((lru_[s] - misses[at]) / gap_[s]);
        c.score += c.closed.back() / static_cast<double>(lru_.size());
      }
      out.push_back(std::move(c));
    }
    return out;
  }
  std::uint64_t steps() const { return sequence_.steps(); }

 private:
  std::vector<double> run(const std::vector<std::string>& names) {
    std::vector<RunSpec> specs;
    for (const auto& name : names) {
      for (const auto slots : options_.slots)
        specs.push_back({parse_policy(name), Mode::kGroup, Partition::kGlobal, slots});
    }
    std::vector<double> misses;
    for (const auto& r : run_policies(sequence_, nullptr, specs, options_.warmup))
      misses.push_back(static_cast<double>(r.misses));
    return misses;
  }
  Sequence sequence_;
  const SearchOptions& options_;
  std::vector<double> lru_;
  std::vector<double> gap_;
};

bool better(const Candidate& a, const Candidate& b) { return a.score > b.score; }

}  // namespace

const std::vector<SearchAxis>& search_axes() {
  static const std::vector<SearchAxis> axes = {{"discount", 0.3, 0.95, false},
                                               {"carry", 0.9, 1.6, false},
                                               {"rate", 0.0005, 0.05, true},
                                               {"rank_step", 0.5, 1.0, false},
                                               {"share_2", 0.0, 0.5, false},
                                               {"share_8", 0.0, 0.6, false},
                                               {"share_32", 0.0, 0.8, false},
                                               {"share_256", 0.0, 0.4, false}};
  return axes;
}

SearchResult search_policies(const std::vector<std::string>& paths,
                             const SearchOptions& options,
                             const ProgressFn& progress) {
  constexpr std::size_t kBatch = 8;
  constexpr double kRandomShare = 0.4;  // the rest is drawn around the best so far
  constexpr std::size_t kParents = 6;
  constexpr double kWidest = 0.2;  // standard deviation on an axis of length 1, first and last
  constexpr double kNarrowest = 0.03;
  if (options.candidates < kFinalists)
    throw UserError("a search needs at least " + std::to_string(kFinalists) + " candidates");
  if (options.slots.empty()) throw UserError("a search needs at least one cache size");

  Scorer screen(Sequence(paths, {.split = Split::kTrain, .max_steps = options.screen_steps}),
                options);
  Scorer whole(Sequence(paths, {.split = Split::kTrain}), options);
  const auto total = static_cast<std::size_t>(options.candidates);
  const std::uint64_t work = total * screen.steps() + kFinalists * whole.steps();
  Rng rng(options.seed);
  SearchResult result;
  std::set<std::string> seen;
  std::vector<std::pair<Candidate, Point>> best;  // the parents
  while (result.screened.size() < total) {
    const double done = static_cast<double>(result.screened.size()) / static_cast<double>(total);
    std::vector<Point> points;
    std::vector<std::string> names;
    while (points.size() < std::min(kBatch, total - result.screened.size())) {
      Point p(search_axes().size());
      if (done < kRandomShare) {
        for (auto& x : p) x = rng.uniform();
      } else {
        const double width =
            kWidest * std::pow(kNarrowest / kWidest, (done - kRandomShare) / (1.0 - kRandomShare));
        p = best[rng.below(best.size())].second;
        for (auto& x : p) x = std::clamp(x + width * rng.normal(), 0.0, 1.0);
      }
      if (!seen.insert(name_at(p)).second) continue;
      names.push_back(name_at(p));
      points.push_back(std::move(p));
    }
    auto scored = screen.score(names);
    for (std::size_t i = 0; i < scored.size(); ++i) {
      best.emplace_back(scored[i], points[i]);
      result.screened.push_back(std::move(scored[i]));
    }
    std::stable_sort(best.begin(), best.end(), [](const auto& a, const auto& b) {
      return better(a.first, b.first);
    });
    best.resize(std::min(best.size(), kParents));
    if (progress) progress(result.screened.size() * screen.steps(), work);
  }
  std::vector<Candidate> ranked = result.screened;
  std::stable_sort(ranked.begin(), ranked.end(), better);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kFinalists; ++i) names.push_back(ranked[i].policy);
  result.finalists = whole.score(names);
  std::stable_sort(result.finalists.begin(), result.finalists.end(), better);
  if (progress) progress(work, work);
  return result;
}

}  // namespace assay::replay
