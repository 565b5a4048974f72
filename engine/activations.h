// The arrays between a forward's steps, carved out of one block of a memory space.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/model_config.h"
#include "kernels/base/kv_rows.h"
#include "kernels/pointwise/steps.h"

namespace assay {

// The widest of every array over all layers.
struct Widths {
  int hidden = 0;
  int qkv = 0;
  int q = 0;
  int kv = 0;
  int gate_up = 0;
  int dense = 0;
  int experts = 0;
  int top_k = 0;
  int half_head = 0;

  explicit Widths(const ModelConfig& config);
};

// Hands out 64-byte aligned arrays; counts only while `base` is null.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t count) {
    std::byte* at = base_ != nullptr ? base_ + used_ : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  // [tokens][width], with its int8 form where `fast` asks for it.
  pointwise::Activation activation(std::size_t tokens, int width, bool fast);
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

// What the arrays' sizes depend on.
struct ActivationShape {
  int tokens = 1;  // of a chunk
  int rope_tables = 1;
  KvType kv = KvType::kF32;
  bool fast = false;
};

// Activations of one chunk; every array is [tokens][width].
struct Activations {
  using Activation = pointwise::Activation;
  std::int32_t* position = nullptr;  // [1]: of the chunk's first token; the ids lie right behind it
  std::int32_t* token_ids = nullptr;
  float* x = nullptr;            // residual at the layer's input
  float* h = nullptr;            // residual between the halves
  Activation a;                  // normed input of qkv, and of the dense branch; width hidden
  float* qkv = nullptr;          // raw projections
  float* q = nullptr;            // normed and rotated
  std::byte* k_fresh = nullptr;  // of the chunk, in the cache's type
  std::byte* v_fresh = nullptr;
  Activation o;             // attention's output; width q
  float* branch = nullptr;  // attn_out, later dense_out; width hidden
  float* gate_up = nullptr;
  Activation u;  // width dense
  float* router_in = nullptr;
  float* router_logits = nullptr;
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
  std::int32_t* forced = nullptr;  // expert ids chosen from outside
  Activation m;                    // experts' input; width hidden
  float* experts_out = nullptr;
  float* cosine = nullptr;  // [table][tokens][half_head]
  float* sine = nullptr;

  // Sets the arrays of `out` (may be null) into the block at `base` (null: counts only); returns the block's bytes.
  static std::size_t carve(std::byte* base,
                           const ActivationShape& shape,
                           const Widths& w,
                           Activations* out);
};

}  // namespace assay
