#include "bench/card_timer.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <nlohmann/json.hpp>

#include "bench/cold.h"
#include "bench/kernel_trace.h"
#include "kernels/base/error.h"
#include "kernels/base/wait_limit.h"

namespace assay {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMostSets = 64;
constexpr int kLeastNodes = 32;  // calls of a graph

int sets_for(const std::string& regime, double set_bytes, bool accumulates) {
  // A call on an in-out field must start from that field's own state: a set each for as many calls as a graph has.
  int sets = accumulates ? kLeastNodes : 1;
  if (regime == "cold-rotate")
    sets = std::max(sets, sets_for_turn(gpu::device().l2_bytes, set_bytes));
  return std::min(sets, kMostSets);
}

}  // namespace

CardTimer::CardTimer(const OpInfo& op,
                     std::size_t case_index,
                     int variant,
                     const std::string& regime)
    : info_(op.variants.at(static_cast<std::size_t>(variant))), variant_(variant), regime_(regime) {
  sets_.push_back(std::make_unique<FreshProblem>(op, case_index));
  set_bytes_ = bytes_of(sets_.front()->problem());
  const int sets = sets_for(regime, set_bytes_, sets_.front()->accumulates());
  if (regime == "cold-rotate" && sets * set_bytes_ < kCachesToTurn * gpu::device().l2_bytes) {
    throw UserError("tier " + op.case_names.at(case_index) + ": " + std::to_string(sets) +
                    " copies of it fit three times into the card's cache: never cold; use --regime "
                    "hot or a larger tier");
  }
  sets_.resize(static_cast<std::size_t>(sets));
  std::vector<std::thread> makers;  // filling the inputs takes longer than all else of a start
  const int step = std::max(1, std::min(host_device().threads, sets));
  for (int first = 0; first < step; ++first) {
    makers.emplace_back([&, first] {
      for (int i = first; i < sets; i += step) {
        auto& set = sets_[static_cast<std::size_t>(i)];
        if (set == nullptr) set = std::make_unique<FreshProblem>(op, case_index);
      }
    });
  }
  for (auto& maker : makers) maker.join();
}

Why CardTimer::ineligible() const {
  return sets_.front()->problem().ineligible(variant_, gpu::device());
}

void CardTimer::prepare() {
  for (auto& set : sets_) {
    set->problem().use_device(false);
    set->problem().prepare(variant_);
  }
  flush_ = gpu::Buffer(gpu::cache_flush_bytes());
}

int CardTimer::whole_calls(int calls) const {
  if (sets_.front()->accumulates()) return turn();
  const int graph = calls_of_graph(calls);
  return std::max(1, calls / graph) * graph;
}

// Whole turns only, so that every set is read as often.
int CardTimer::calls_of_graph(int group_calls) const {
  const int full = (kLeastNodes + turn() - 1) / turn() * turn();
  return group_calls >= full ? full : turn();
}

void CardTimer::launch_turns(int calls) {
  for (int c = 0; c < calls; ++c) {
    sets_[static_cast<std::size_t>(c % turn())]->problem().launch(variant_, queue_.stream());
  }
}

// New content for the set that the judge will look at; for all of them where a call changes what it was given, and the first time.
void CardTimer::renew(std::uint64_t seed) {
  const bool all = !uploaded_ || sets_.front()->accumulates();
  judged_ = seed % sets_.size();
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    if (!all && i != judged_) continue;
    sets_[i]->freshen(i == judged_ ? seed : seed + i);
    sets_[i]->problem().upload();
  }
  uploaded_ = true;
}

TimedGroups CardTimer::run(int groups, int group_calls, std::uint64_t seed, bool warm) {
  const WaitLimit limit("a timed group");
  if (group_calls % turn() != 0)
    throw InputError("a group of " + std::to_string(group_calls) + " calls is no whole turn over " +
                     std::to_string(turn()) + " sets");
  const int most = calls_of_graph(group_calls);
  const int graph_calls = group_calls % most == 0 ? most : turn();
  if (warm || graph_calls != graph_calls_) {
    renew(group_seed(seed, -1));
    launch_turns(
        turn());  // directly, before any capture: what is set up once must not be part of a graph
    queue_.wait();
  }
  if (!info_.host_sync && graph_calls != graph_calls_) {
    graph_ = gpu::Graph::capture(queue_.stream(), [&] { launch_turns(graph_calls); });
    graph_calls_ = graph_calls;
  }
  TimedGroups result;
  for (int g = 0; g < groups; ++g) {
    renew(group_seed(seed, g));
    gpu::flush_cache(flush_, queue_.stream());
    if (info_.host_sync) queue_.wait();
    const ThreadClocks clocks;
    const auto before = Clock::now();
    start_.record(queue_.stream());
    if (info_.host_sync) {
      launch_turns(group_calls);
    } else {
      for (int c = 0; c < group_calls; c += graph_calls) graph_.launch(queue_.stream());
    }
    stop_.record(queue_.stream());
    queue_.wait();
    const auto after = Clock::now();
    clocks.add_to(result);
    result.wall_s += std::chrono::duration<double>(after - before).count();
    result.event_s += stop_.us_since(start_) * 1e-6;
  }
  return result;
}

// A checked call after the clock, on the content of the last group and on poisoned outputs. The graph that was timed cannot tell:
// its nodes are fixed.
std::vector<std::vector<std::byte>> CardTimer::outputs() {
  FreshProblem& set = *sets_[judged_];
  set.problem().reset();
  set.problem().run(variant_, queue_.stream());
  return set.copy_outputs();
}

std::uint64_t CardTimer::input_hash() {
  sets_.front()->freshen(0);
  uploaded_ = false;
  return sets_.front()->input_hash();
}

nlohmann::json CardTimer::card() {
  const KernelTrace traced = trace_kernels([&] {
    launch_turns(turn());
    queue_.wait();
  });
  nlohmann::json cupti =
      traced.absent.empty()
          ? nlohmann::json{{"kernels_a_call", static_cast<double>(traced.kernels) / turn()},
                           {"kernel_us_a_call", traced.busy_us / turn()}}
          : nlohmann::json("none: " + traced.absent);
  return {{"regime", regime_},
          {"sets", turn()},
          {"set_bytes", set_bytes_},
          {"graph_calls", graph_calls_},
          {"graph_nodes", graph_.nodes()},
          {"cupti", std::move(cupti)}};
}

}  // namespace assay
