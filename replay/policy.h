// The table of replay policies and what one is made of. A policy is one file, policy_<stem>.cpp, that defines
// `const PolicyEntry policy_<stem>`; parsing, help, reports and the tests loop over the table.
//
// Plain mode: every access is looked up and, on a miss, admitted before the next one. Group mode: the rules of
// kernels/expert_policy/group.h. A policy is a class with
//   template <class Sink> std::uint32_t lookup_and_admit(const OracleGroup&, Sink&&);   // returns the misses
// on-line ones live in kernels/expert_policy and take the Group part only.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/expert_policy/group.h"
#include "replay/sequence.h"

namespace assay::replay {

using expert_policy::kNone;

enum class Mode : std::uint8_t { kPlain, kGroup };
enum class Partition : std::uint8_t { kGlobal, kLayer };
const char* to_string(Mode mode);            // "plain", "group"
const char* to_string(Partition partition);  // "global", "layer"

// A group as an oracle sees it.
struct OracleGroup : expert_policy::Group {
  const std::uint32_t* next =
      nullptr;  // [size] places to the member's next use, or kNeverAgain; null without an oracle
  std::uint64_t place = 0;  // of the first member, in the sequence
};

// What a simulator is built for.
struct Setup {
  Mode mode = Mode::kGroup;
  Partition partition = Partition::kGlobal;
  std::uint32_t capacity = 0;  // of one cache: the whole one, or one layer's
  std::uint32_t objects = 0;   // of one cache: layers * experts, or experts
  std::uint32_t layers = 1;    // of one cache
  std::uint32_t experts = 0;   // a layer
  std::uint32_t caches = 1;
  std::uint32_t top_k = 1;
  std::uint64_t step_places = 1;  // places a step: groups per step * top_k
  Sequence* sequence = nullptr;   // what is replayed (oracles look ahead in it)
  Sequence* train = nullptr;  // the train split of the same inputs; null when nobody asked for it
};

// One access as the tests compare it.
struct Event {
  std::uint64_t group = 0;
  std::uint32_t object = 0;
  bool hit = false;
  bool admitted = false;         // meaningful for a miss
  std::uint32_t victim = kNone;  // object displaced, kNone: none
  bool operator==(const Event&) const = default;
};

// A policy with its caches, fed in order, block by block.
class Simulator {
 public:
  virtual ~Simulator() = default;
  // misses: [block.groups()], set to the misses of every group.
  virtual void run(const Block& block, std::uint16_t* misses) = 0;
  // Appends what happens from now on; null: stop.
  void log_to(std::vector<Event>* log) { log_ = log; }

 protected:
  std::vector<Event>* log_ = nullptr;
};

// A parsed policy name.
struct PolicyChoice {
  std::string name;        // canonical, as in reports
  bool oracle = false;     // needs Block::next
  bool weights = false;    // wants Block::weights
  bool train = false;      // needs Setup::train
  bool in_sample = false;  // saw the very steps it is scored on
  bool group_mode = true;
  bool plain_mode = true;
  std::function<std::unique_ptr<Simulator>(const Setup&)> make;
};

struct PolicyEntry {
  const char* forms;    // names with their parameters, for help: "decay:H:G decay32"
  const char* summary;  // one line
  // fields: the name cut at ':'. Nothing when the name is another policy's; UserError when a parameter is bad.
  std::optional<PolicyChoice> (*parse)(const std::vector<std::string>& fields);
};

std::span<const PolicyEntry* const> all_policies();
// UserError listing the forms of the table.
PolicyChoice parse_policy(const std::string& name);
// Whole number in [low, high] of a policy's parameter; UserError naming the policy.
std::uint64_t parse_parameter(const std::vector<std::string>& fields,
                              std::size_t index,
                              std::uint64_t low,
                              std::uint64_t high);
double parse_share(const std::vector<std::string>& fields, std::size_t index);  // in (0, 1]

// Runs any policy class over blocks: cuts groups, picks the cache of the layer, counts misses.
template <class Policy>
class PolicySimulator final : public Simulator {
 public:
  // make(cache) builds the policy of that cache.
  template <class Make>
  PolicySimulator(const Setup& setup, Make&& make) : setup_(setup), local_(setup.top_k) {
    caches_.reserve(setup.caches);
    for (std::uint32_t c = 0; c < setup.caches; ++c) caches_.push_back(make(c));
  }

  void run(const Block& block, std::uint16_t* misses) override {
    if (log_ != nullptr) {
      run_with(block, misses, [this](const std::uint32_t* objects, std::uint64_t group) {
        return LogSink{log_, objects, group, object_base_};
      });
    } else {
      run_with(block, misses, [](const std::uint32_t*, std::uint64_t) {
        return expert_policy::NoSink{};
      });
    }
  }

 private:
  struct LogSink {
    std::vector<Event>* log;
    const std::uint32_t* objects;
    std::uint64_t group;
    std::uint32_t base;
    void hit(std::uint32_t r) { log->push_back({group, base + objects[r], true, false, kNone}); }
    void admit(std::uint32_t r, std::uint32_t victim) {
      log->push_back(
          {group, base + objects[r], false, true, victim == kNone ? kNone : base + victim});
    }
    void refuse(std::uint32_t r) {
      log->push_back({group, base + objects[r], false, false, kNone});
    }
  };

  template <class MakeSink>
  void run_with(const Block& block, std::uint16_t* misses, MakeSink&& make_sink) {
    const std::uint32_t* next = block.next.empty() ? nullptr : block.next.data();
    const float* weights = block.weights.empty() ? nullptr : block.weights.data();
    const bool per_layer = setup_.partition == Partition::kLayer;
    const bool flat = block.groups_per_step == 1 && setup_.top_k == 1;
    std::uint64_t group = block.first_step * block.groups_per_step;
    std::uint64_t place = group * setup_.top_k;
    std::size_t g = 0;
    std::uint32_t begin = 0;
    for (std::size_t s = 0; s < block.steps; ++s) {
      for (std::uint32_t l = 0; l < block.groups_per_step;
           ++l, ++g, ++group, place += setup_.top_k) {
        const std::uint32_t end = block.group_end[g];
        const std::uint32_t* objects = block.objects.data() + begin;
        std::uint32_t layer = l;
        if (flat && begin != end) layer = objects[0] / setup_.experts;
        Policy* cache = &caches_[0];
        if (per_layer) {
          cache = &caches_[layer];
          object_base_ = layer * setup_.experts;
          for (std::uint32_t i = 0; i < end - begin; ++i) local_[i] = objects[i] - object_base_;
          objects = local_.data();
        }
        OracleGroup og;
        og.objects = objects;
        og.weights = weights != nullptr ? weights + begin : nullptr;
        og.size = end - begin;
        og.layer = per_layer ? 0 : layer;
        og.step = block.first_step + s;
        og.next = next != nullptr ? next + begin : nullptr;
        og.place = place;
        std::uint32_t missed = 0;
        if (setup_.mode == Mode::kGroup) {
          missed = cache->lookup_and_admit(og, make_sink(objects, group));
        } else {
          const std::uint32_t size = og.size;
          og.size = 1;
          for (std::uint32_t r = 0; r < size; ++r) {
            missed += cache->lookup_and_admit(og, make_sink(og.objects, group));
            ++og.objects;
            if (og.weights != nullptr) ++og.weights;
            if (og.next != nullptr) ++og.next;
            ++og.place;
          }
        }
        misses[g] = static_cast<std::uint16_t>(missed);
        begin = end;
      }
    }
  }

  Setup setup_;
  std::vector<Policy> caches_;
  std::vector<std::uint32_t> local_;  // [top_k] a group in its cache's numbering
  std::uint32_t object_base_ = 0;
};

template <class Make>
std::unique_ptr<Simulator> simulate(const Setup& setup, Make&& make) {
  return std::make_unique<PolicySimulator<decltype(make(0U))>>(setup, std::forward<Make>(make));
}

}  // namespace assay::replay
