// decode_token: one token through the whole model, from its id to the logits, as one seam for fusion (whole-token graph,
// persistent kernel). Stock is the caller's chain: embedding, every layer's attention_block and ffn_block, the head.
// Not responsible for: sampling.
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

struct DecodeToken {
  static constexpr const char* kName = "decode_token";
  static constexpr const char* kSwitch = "ASSAY_DECODE_TOKEN";
  static constexpr const char* kSummary = "composite: one token through all layers to the logits";
  static constexpr OpKind kKind = OpKind::kComposite;
  // Ops whose choice an armed variant of this one hides.
  static constexpr const char* kParts[] = {"attention_block",
                                           "ffn_block",
                                           "gemv_quant",
                                           "attention_decode",
                                           "router_topk",
                                           "experts_host",
                                           "experts_decode",
                                           "moe_miss",
                                           "doorbell_publish"};

  struct Shape {
    int layers = 0;
    int hidden = 0;    // D
    int vocab = 0;     // rows of the head
    int position = 0;  // of the token
    KvType kv = KvType::kF32;
    Numerics numerics = Numerics::kExact;
    std::string describe() const;
  };

  // One layer's part of the sequence's cache.
  struct LayerCache {
    int slots = 1;           // rows; position j lies in row j % slots
    float* k_f32 = nullptr;  // [slots][kv_width]; the pointers of the shape's type are set
    float* v_f32 = nullptr;
    std::uint16_t* k_f16 = nullptr;
    std::uint16_t* v_f16 = nullptr;
  };

  struct Args {
    std::int32_t id = 0;
    QuantView embedding;                          // [vocab][hidden]
    float embedding_scale = 1.0F;                 // sqrt(hidden)
    const AttentionWeights* attention = nullptr;  // [layers]
    const FfnWeights* ffn = nullptr;              // [layers]
    const LayerCache* cache = nullptr;            // [layers]
    const float* output_norm = nullptr;           // [hidden]
    Matrix head;                                  // [vocab][hidden]
    float softcap = 0.0F;
    float* logits = nullptr;  // [vocab], written whole
    Chain chain;              // stock
  };

  // What is visible outside; parity compares it. The caches are compared by attention_block's own parity.
  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    v("logits", a.logits, static_cast<std::size_t>(s.vocab), Dir::kOut);
  }
};

}  // namespace assay
