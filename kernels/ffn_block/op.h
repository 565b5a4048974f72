// ffn_block: everything from a layer's middle residual to its output, as one seam for fusion: the dense branch, the
// router and the routed experts, both from h; y = RMSNorm(d + m, post_norm); out = (h + y) * layer_scale (spec 3.2).
// Stock is the caller's chain of part ops; a fused variant replaces it and hides the parts' choices.
// Not responsible for: the attention half.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/chain.h"
#include "kernels/base/layer.h"
#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay {

struct FfnBlock {
  static constexpr const char* kName = "ffn_block";
  static constexpr const char* kSwitch = "ASSAY_FFN_BLOCK";
  static constexpr const char* kSummary = "composite: dense branch, router and experts of a layer";
  static constexpr OpKind kKind = OpKind::kComposite;
  // Ops whose choice an armed variant of this one hides.
  static constexpr const char* kParts[] = {"gemv_quant",
                                           "gemm_quant",
                                           "router_topk",
                                           "experts_host",
                                           "experts_prefill",
                                           "experts_decode",
                                           "moe_miss",
                                           "doorbell_publish"};

  struct Shape {
    int tokens = 1;
    int hidden = 0;  // D
    int top_k = 1;   // experts a token
    Numerics numerics = Numerics::kExact;
    std::string describe() const;
  };

  struct Args {
    const FfnWeights* weights = nullptr;
    const float* h = nullptr;  // [tokens][hidden], not aliased
    const std::int32_t* forced_ids =
        nullptr;                   // [tokens][top_k]: take these experts; null: the router's own
    std::int32_t* ids = nullptr;   // [tokens][top_k], written whole
    float* weights_out = nullptr;  // [tokens][top_k], written whole
    float* out = nullptr;          // [tokens][hidden], written whole
    Chain chain;                   // stock: the part ops as selected, on these same buffers
  };

  // Stock's own need; a fused variant states its own.
  static std::size_t workspace_bytes(const Shape&) { return 0; }

  // What is visible outside; parity compares it.
  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    const auto n = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.hidden);
    const auto chosen = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.top_k);
    v("h", a.h, n, Dir::kIn);
    v("ids", a.ids, chosen, Dir::kOut);
    v("weights", a.weights_out, chosen, Dir::kOut);
    v("out", a.out, n, Dir::kOut);
  }
};

}  // namespace assay
