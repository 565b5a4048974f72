// Hyper-parameters of a gemma4 MoE file, read from the metadata and proven against the shape of every tensor.
#pragma once
#include <string>
#include <vector>

#include "engine/gguf.h"

namespace assay {

struct LayerConfig {
  bool is_local = true;  // sliding window; else full attention
  int heads = 0;         // query heads, a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;  // even; Q, K and V alike
  float rope_base = 0.0F;
  bool rope_factors = false;  // divide angles by rope_freqs.weight (global layers)
  int window = 0;  // visible keys of a local layer, the token itself included; 0 in global layers
  bool has_v = true;  // false: V is the raw K (before k-norm and RoPE)
  bool fused_gate_up =
      true;             // ffn_gate_up_exps (rows [0, F_e) gate, [F_e, 2 F_e) up), else two tensors
  int dense_width = 0;  // F_d

  int q_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
};

struct ModelConfig {
  std::string name;  // general.name, or empty
  int layers = 0;
  int hidden = 0;  // D
  int vocab = 0;
  int context = 0;       // trained context, tokens
  int experts = 0;       // E
  int experts_used = 0;  // K <= E
  int expert_width = 0;  // F_e
  float eps = 0.0F;
  float softcap = 0.0F;            // > 0
  bool tied_head = true;           // no output.weight: token_embd is the head
  std::vector<LayerConfig> layer;  // [layers]
};

// "blk.7.attn_q.weight"
std::string layer_tensor(int layer, const char* suffix);

// Reads the settings (scalar or per-layer array where the format allows both) and checks every tensor of the file:
// presence, exact shape, F32 for norms, scales, router and rope_freqs, finite positive rope_freqs, no layer outside
// [0, layers), no tensor that this architecture does not know (vision and audio towers `v.`, `a.`, `mm.` are ignored).
// Refuses what is not implemented: embedding_length_per_layer_input, shared_kv_layers, split files, RoPE scaling.
// Throws InputError naming key or tensor. Does not look at the tokenizer beyond the vocabulary's size.
ModelConfig read_config(const GgufFile& file);

}  // namespace assay
