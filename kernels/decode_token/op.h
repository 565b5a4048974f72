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
    int hidden = 0;                  // D
    int vocab = 0;                   // rows of the head
    int position = 0;                // of the token
    std::size_t cache_elements = 0;  // of all layers' keys and values together
    KvType kv = KvType::kF32;
    Numerics numerics = Numerics::kExact;
    std::string describe() const;
  };

  // One layer's part of the sequence's cache.
  struct LayerCache {
    int slots = 1;      // rows; position j lies in row j % slots
    std::size_t k = 0;  // element where [slots][kv_width] keys begin, 64-byte aligned
    std::size_t v = 0;  // the same of the values
  };

  struct Args {
    std::int32_t id = 0;
    QuantView embedding;                          // [vocab][hidden]
    float embedding_scale = 1.0F;                 // sqrt(hidden)
    const AttentionWeights* attention = nullptr;  // [layers]
    const FfnWeights* ffn = nullptr;              // [layers]
    const LayerCache* layers = nullptr;           // [layers]
    float* cache_f32 = nullptr;  // [cache_elements]: the pointer of the shape's type is set;
    std::uint16_t* cache_f16 = nullptr;  //   the rows of `position` are written
    const float* output_norm = nullptr;  // [hidden]
    Matrix head;                         // [vocab][hidden]
    float softcap = 0.0F;
    float* logits = nullptr;  // [vocab], written whole
    Chain chain;              // stock
  };

  // Stock's own need; a fused variant states its own.
  static std::size_t workspace_bytes(const Shape&) { return 0; }

  // What is visible outside; parity compares it.
  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    if (s.kv == KvType::kF32) {
      v("cache", a.cache_f32, s.cache_elements, Dir::kInOut);
    } else {
      v("cache", a.cache_f16, s.cache_elements, Dir::kInOut);
    }
    v("logits", a.logits, static_cast<std::size_t>(s.vocab), Dir::kOut);
  }
};

}  // namespace assay
