// The keys and values of one sequence: local layers on a ring of `window` rows, global layers to the full context.
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
  // context: rows of a global layer, >= 1. The rows lie in `space`, which outlives the cache.
  KvCache(const ModelConfig& config, KvType type, int context, const MemorySpace& space);

  struct Layer {
    int slots = 1;           // rows; position j lies in row j % slots
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

  // Bytes that a cache would take.
  static std::size_t bytes_for(const ModelConfig& config, KvType type, int context);

 private:
  KvType type_;
  int context_;
  std::vector<Layer> layers_;
  std::vector<DecodeToken::LayerCache> offsets_;
  std::vector<int> widths_;
  const MemorySpace* space_;
  SpaceBuffer memory_;
};

}  // namespace assay
