// The keys and values of one sequence: local layers on a ring of at least `window` rows, global layers to the full context.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/memory_space.h"
#include "engine/model_config.h"
#include "kernels/base/kv_rows.h"
#include "kernels/decode_token/op.h"
#include "kernels/pointwise/pointwise.h"

namespace assay {

class KvCache {
 public:
  // context: rows of a global layer, >= 1. A local layer keeps `slack` rows more than its window sees, so that a sequence
  // can be cut back by as many tokens. The rows lie in `space`, which outlives the cache.
  KvCache(
      const ModelConfig& config, KvType type, int context, const MemorySpace& space, int slack = 0);

  struct Layer {
    int slots = 1;           // rows; position j lies in row j % slots
    int window = 0;          // rows that a token sees, itself included; 0: all
    float* k_f32 = nullptr;  // [slots][width]; the pointers of type() are set
    float* v_f32 = nullptr;
    std::uint16_t* k_f16 = nullptr;
    std::uint16_t* v_f16 = nullptr;
  };
  KvType type() const { return type_; }
  int context() const { return context_; }
  std::size_t bytes() const { return memory_.bytes(); }
  const Layer& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  // The same by offset into one array of elements() floats or halves.
  std::span<const DecodeToken::LayerCache> offsets() const { return offsets_; }
  std::size_t elements() const { return memory_.bytes() / kv_bytes(type_); }
  float* f32() const;
  std::uint16_t* f16() const;
  // Elements of one layer's row: kv_heads * head_dim.
  int width(int index) const { return widths_[static_cast<std::size_t>(index)]; }

  KvRows keys(int layer) const;
  KvRows values(int layer) const;
  // Row 0 of a layer, to write into.
  pointwise::KvRow key_rows(int layer) const { return key_row(layer, 0); }
  pointwise::KvRow value_rows(int layer) const { return value_row(layer, 0); }
  // Where position j's row lies; the older position in that row is lost when it is written.
  pointwise::KvRow key_row(int layer, int position) const;
  pointwise::KvRow value_row(int layer, int position) const;
  // Copies the rows of positions [first, first + tokens) from [tokens][width] in the cache's type and space. Of a chunk
  // longer than the ring only the newest rows stay.
  void commit(int layer, int first, int tokens, KvRows keys, KvRows values);

  // The rows that the token at `position` needs of those before it, layer after layer, keys then values, oldest first:
  // what a snapshot holds. The same bytes whatever the slack.
  enum class Part { kLocal, kAll };
  std::size_t saved_bytes(int position, Part part) const;
  // The same of any cache of the model, without one.
  static std::size_t saved_bytes(const ModelConfig& config, KvType type, int position, Part part);
  void save(int position, Part part, std::byte* to) const;
  void load(int position, Part part, const std::byte* from);

  // Makes the memory of positions [0, rows) resident, contents untouched, and gives the bytes that are resident then.
  std::size_t touch(int rows);

  // Bytes that a cache would take.
  static std::size_t bytes_for(const ModelConfig& config, KvType type, int context, int slack = 0);

 private:
  KvType type_;
  int context_;
  std::vector<Layer> layers_;
  std::vector<DecodeToken::LayerCache> offsets_;
  template <class F>
  void each_saved(int position, Part part, F&& run) const;

  std::vector<int> widths_;
  const MemorySpace* space_;
  SpaceBuffer memory_;
};

// A sequence: its rows and how far they go. Sessions of one model may take turns with it (Session::exchange).
class Sequence {
 public:
  Sequence(
      const ModelConfig& config, KvType type, int context, const MemorySpace& space, int slack = 0)
      : cache(config, type, context, space, slack) {}

  KvCache cache;
  int position = 0;    // tokens fed so far: the next token's position
  int local_from = 0;  // local layers hold every row from here on
  int reserved = 0;    // rows whose memory is resident for sure

  // Can the sequence go on from `at` <= position, as if the tokens behind it had never been fed?
  bool can_cut(int at) const;
  // std::logic_error unless can_cut.
  void cut(int at);
  // After rows up to `position` were written or loaded.
  void wrote();
  // The rows of local layers as they are needed at the current position. Restoring them later cuts the sequence back to
  // that position, as long as the tokens before it are the same.
  std::vector<std::byte> local_rows() const;
  void restore_local(int at, const std::byte* rows);
  // Everything, as save() wrote it.
  std::vector<std::byte> rows() const;
  void restore(int at, const std::byte* rows);
  // Memory for `rows` tokens (at most the context) before they come, so that no kernel waits for it. Resident bytes.
  std::size_t reserve(int rows);

 private:
  void restored(int at);
};

}  // namespace assay
