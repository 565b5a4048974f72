// One or more inputs as a single run of steps: what every replay reads. Streams; memory does not grow with the trace.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace assay::replay {

inline constexpr std::uint32_t kNeverAgain = 0xFFFFFFFFU;

// Steps [first_step, first_step + steps) of a sequence. A group is what one layer of one step chose; in a flat input every
// access is a step of one group with one object. Objects are numbered layer * experts + expert.
struct Block {
  std::uint64_t first_step = 0;
  std::size_t steps = 0;
  std::uint32_t groups_per_step = 0;
  std::vector<std::uint32_t> objects;    // all groups, padding dropped, rank order
  std::vector<std::uint32_t> group_end;  // [steps * groups_per_step] into objects
  std::vector<float> weights;  // parallel to objects; empty when not asked for or not in the trace
  std::vector<std::uint32_t> conversation;  // [steps] index into Sequence::conversations()
  // Parallel to objects, empty unless NextUse::fill ran: how many places later the object is used again, or kNeverAgain.
  // The place of rank r of group g of the sequence is g * top_k + r, r counted without padding.
  std::vector<std::uint32_t> next;

  std::size_t groups() const { return group_end.size(); }
};

struct SequenceOptions {
  std::optional<Split> split = {};  // only conversations of this split
  std::uint64_t max_steps = 0;      // 0: all
  int experts = 0;                  // flat inputs: layer = object / experts; 0: one layer
};

// A conversation of one input, in the sequence's numbering.
struct SequenceConversation {
  std::size_t input = 0;
  std::uint32_t id = 0;
  Split split = Split::kTrain;
  std::uint64_t first = 0;  // step of the sequence
  std::uint64_t steps = 0;
};

class Sequence {
 public:
  // Opens every input, whatever its kind. InputError: unreadable, no steps left after the split, geometries that differ
  // between inputs (the message names both), a flat input beside a structured one.
  Sequence(const std::vector<std::string>& paths, const SequenceOptions& options);
  ~Sequence();
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;

  const std::vector<std::string>& paths() const;
  // Flat: layers from the largest object when `experts` was given, else 1; top_k 1.
  const TraceGeometry& geometry() const;
  bool flat() const;
  bool has_weights() const;
  std::uint64_t expert_bytes() const;  // 0 unknown
  bool sealed() const;                 // all inputs
  std::string label() const;           // of the first input
  std::uint64_t steps() const;
  std::uint32_t objects() const;
  std::uint32_t groups_per_step() const;
  const std::vector<SequenceConversation>& conversations() const;
  // Layer of an object of the sequence.
  std::uint32_t layer_of(std::uint32_t object) const;
  // Steps a block should hold so that it stays in the second-level cache.
  std::size_t block_steps() const;
  // Decodes [first, first + count), cut at the end; reuses the block's memory. `next` is cleared.
  void decode(std::uint64_t first, std::size_t count, bool with_weights, Block& block);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// When every access's object is used again, from one pass backwards over the sequence.
class NextUse {
 public:
  // progress(steps done) is called now and then.
  explicit NextUse(Sequence& sequence,
                   void (*progress)(void*, std::uint64_t) = nullptr,
                   void* context = nullptr);
  ~NextUse();
  void fill(Block& block) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace assay::replay
