// attention_block: everything from a layer's input residual to the middle residual, as one seam for fusion.
//   h = x + RMSNorm(Wo attention(q, K, V), post_norm), with norms, RoPE and the cache rows of the new tokens on the way
//   (spec 3.2 to 3.4). Stock is the caller's chain of part ops; a fused variant replaces it and hides the parts' choices.
// Not responsible for: the FFN half.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/chain.h"
#include "kernels/base/kv_rows.h"
#include "kernels/base/layer.h"
#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay {

struct AttentionBlock {
  static constexpr const char* kName = "attention_block";
  static constexpr const char* kSwitch = "ASSAY_ATTENTION_BLOCK";
  static constexpr const char* kSummary =
      "composite: projections, attention and residual of a layer";
  static constexpr OpKind kKind = OpKind::kComposite;
  // Ops whose choice an armed variant of this one hides.
  static constexpr const char* kParts[] = {
      "gemv_quant", "gemm_quant", "attention_decode", "attention_prefill"};

  struct Shape {
    int tokens = 1;    // fresh tokens of one sequence
    int past = 0;      // tokens in the cache before them
    int slots = 1;     // rows of the cache; position j lies in row j % slots
    int hidden = 0;    // D
    int kv_width = 0;  // kv_heads * head_dim
    KvType kv = KvType::kF32;
    Numerics numerics = Numerics::kExact;
    std::string describe() const;
  };

  struct Args {
    const AttentionWeights* weights = nullptr;
    const float* x = nullptr;       // [tokens][hidden]
    const float* cosine = nullptr;  // [tokens][head_dim / 2] of the tokens' positions
    const float* sine = nullptr;
    float* k_f32 =
        nullptr;  // the cache, [slots][kv_width]: the pointers of the shape's type are set;
    float* v_f32 = nullptr;  //   rows of the new positions are written
    std::uint16_t* k_f16 = nullptr;
    std::uint16_t* v_f16 = nullptr;
    float* h = nullptr;  // [tokens][hidden], written whole
    Chain chain;         // stock: the part ops as selected, on these same buffers
  };

  // Stock's own need; a fused variant states its own.
  static std::size_t workspace_bytes(const Shape&) { return 0; }

  // What is visible outside; parity compares it.
  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    const auto n = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.hidden);
    const auto cache = static_cast<std::size_t>(s.slots) * static_cast<std::size_t>(s.kv_width);
    v("x", a.x, n, Dir::kIn);
    if (s.kv == KvType::kF32) {
      v("k", a.k_f32, cache, Dir::kInOut);
      v("v", a.v_f32, cache, Dir::kInOut);
    } else {
      v("k", a.k_f16, cache, Dir::kInOut);
      v("v", a.v_f16, cache, Dir::kInOut);
    }
    v("h", a.h, n, Dir::kOut);
  }
};

}  // namespace assay
