// Timed groups of one tier on the GPU.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench/child.h"
#include "kernels/base/gpu_memory.h"

namespace assay {

// Calls take turns over `sets` equal problems with buffers of their own. In the regime cold-rotate they are so many that a set's
// bytes have left the last-level cache when it is its turn again; in hot there is one. A group is so many replays of a captured
// graph of whole turns (direct calls for a variant that waits for the host), queued behind a cache flush, so that the first
// call waits for nothing but the card.
class CardTimer final : public TierTimer {
 public:
  // UserError when the tier is too small to be cold.
  CardTimer(const OpInfo& op, std::size_t case_index, int variant, const std::string& regime);
  Why ineligible() const override;
  void prepare() override;
  TimedGroups run(int groups, int group_calls, std::uint64_t seed, bool warm) override;
  std::vector<std::vector<std::byte>> outputs() override;
  std::uint64_t input_hash() override;
  std::string broken_guard() override { return sets_.front()->problem().broken_guard(); }
  double least_group_s(double block_s, double) const override { return block_s; }
  int whole_calls(int calls) const override;
  int unit_of(int calls) const override { return calls_of_graph(calls); }
  nlohmann::json card() override;
  double bytes_moved() const { return sets_.front()->problem().bytes_moved(); }

 private:
  int turn() const { return static_cast<int>(sets_.size()); }
  int calls_of_graph(int group_calls) const;
  void launch_turns(int calls);
  void renew(std::uint64_t seed);

  const VariantInfo& info_;
  int variant_;
  std::string regime_;
  double set_bytes_ = 0.0;
  std::vector<std::unique_ptr<FreshProblem>> sets_;
  std::size_t judged_ = 0;  // set with the content of the last group's seed
  bool uploaded_ = false;
  gpu::Queue queue_;
  gpu::Buffer flush_;
  gpu::Event start_;
  gpu::Event stop_;
  gpu::Graph graph_;
  int graph_calls_ = 0;
};

}  // namespace assay
