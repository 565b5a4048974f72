// One transformer layer's weights as the composite ops and the engine see them. Nothing here is owned.
#pragma once
#include <cstdint>

#include "kernels/base/blocks.h"

namespace assay {

// A matrix in the layouts that the chosen variants want: `few` for the ops of 1 to 8 tokens, `many` for the others.
// Usually both are the same memory.
struct Matrix {
  QuantView few;
  QuantView many;
};

// Matrices that multiply the same input. Where the file's types agree they are one part with all rows stacked.
struct MatrixStack {
  static constexpr int kMaxParts = 3;
  Matrix part[kMaxParts];
  int parts = 0;
};

struct AttentionWeights {
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;     // visible keys of a local layer, 0 in a global one
  bool has_v = true;  // false: V is the raw K
  float eps = 0.0F;
  const float* norm = nullptr;       // [hidden] before the projections
  const float* q_norm = nullptr;     // [head_dim]
  const float* k_norm = nullptr;     // [head_dim]
  const float* post_norm = nullptr;  // [hidden] of the output, before the residual
  MatrixStack qkv;                   // rows of Q, K and, if has_v, V
  Matrix o;                          // [hidden][heads * head_dim]

  int q_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  int qkv_rows() const { return q_width() + kv_width() * (has_v ? 2 : 1); }
};

// gate_up when fused ([experts * 2F][D], rows of gate then of up in each expert), else gate and up ([experts * F][D]).
struct ExpertMatrices {
  QuantView gate_up;
  QuantView gate;
  QuantView up;
  QuantView down;  // [experts * D][F]
};

struct FfnWeights {
  int hidden = 0;
  int dense_width = 0;
  int experts = 0;
  int experts_used = 0;
  int expert_width = 0;
  bool fused_experts = true;
  float eps = 0.0F;
  const float* dense_norm = nullptr;        // [hidden]
  const float* dense_post_norm = nullptr;   // [hidden]
  const float* router_scale = nullptr;      // [hidden], 1 / sqrt(hidden) included
  const float* expert_norm = nullptr;       // [hidden]
  const float* expert_scale = nullptr;      // [experts]
  const float* expert_post_norm = nullptr;  // [hidden]
  const float* post_norm = nullptr;         // [hidden] of the sum of both branches
  float layer_scale = 1.0F;                 // of the whole layer's output, residual included
  MatrixStack gate_up;                      // rows of the dense gate and up
  Matrix down;                              // [hidden][dense_width]
  Matrix router;                            // [experts][hidden], F32
  ExpertMatrices experts_few;
  ExpertMatrices experts_many;
};

}  // namespace assay
