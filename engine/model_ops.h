// Every op of the forward, resolved once for a model's device; and how much scratch they may ask for.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "engine/forward.h"
#include "kernels/attention_block/op.h"
#include "kernels/attention_decode/op.h"
#include "kernels/attention_prefill/op.h"
#include "kernels/decode_token/op.h"
#include "kernels/experts_decode/op.h"
#include "kernels/experts_host/op.h"
#include "kernels/experts_prefill/op.h"
#include "kernels/ffn_block/op.h"
#include "kernels/gemm_quant/op.h"
#include "kernels/gemv_quant/op.h"
#include "kernels/router_topk/op.h"

namespace assay {

inline constexpr int kFewTokens = 8;  // up to here the ops of few tokens, beyond those of many

// The shapes of a layer's calls.
template <class Op>
typename Op::Shape product_shape(const QuantView& w, int tokens, Numerics numerics) {
  return {tokens, w.rows, w.cols, w.type, numerics};
}
template <class Op>
typename Op::Shape experts_shape(const FfnWeights& w,
                                 const ExpertMatrices& e,
                                 int tokens,
                                 Numerics numerics) {
  return {tokens,
          w.hidden,
          w.expert_width,
          w.experts,
          w.experts_used,
          w.fused_experts,
          w.fused_experts ? e.gate_up.type : e.gate.type,
          e.down.type,
          numerics};
}
// live: `position` is the largest that a captured call may meet.
inline AttentionDecode::Shape decode_shape(
    const AttentionWeights& w, int position, int slots, KvType kv, bool live) {
  const int keys = w.window > 0 ? std::min(position + 1, w.window) : position + 1;
  return {w.heads, w.kv_heads, w.head_dim, position, keys, slots, kv, live};
}
inline AttentionPrefill::Shape prefill_shape(
    const AttentionWeights& w, int tokens, int past, int slots, KvType kv) {
  return {tokens, w.heads, w.kv_heads, w.head_dim, past, slots, w.window, kv};
}

struct Model::Ops {
  bool on_card;
  Dispatch<GemvQuant> gemv;
  Dispatch<GemmQuant> gemm;
  Dispatch<ExpertsHost> experts_host;
  Dispatch<ExpertsDecode> experts_decode;
  Dispatch<ExpertsPrefill> experts_prefill;
  Dispatch<AttentionPrefill> attention_prefill;
  Dispatch<AttentionDecode> attention_decode;
  Dispatch<RouterTopk> router;
  Dispatch<AttentionBlock> attention_block;
  Dispatch<FfnBlock> ffn_block;
  Dispatch<DecodeToken> decode_token;

  // HardwareError when an op that the forward needs has no stock on this device.
  Ops(const ModelSettings& settings, const DeviceInfo& device);

  WeightLayouts layouts() const;
  std::vector<DispatchReport> reports() const;
  // f(dispatch) of the op that takes up to kFewTokens tokens on this device.
  template <class F>
  void with_few_experts(F&& f) {
    on_card ? f(experts_decode) : f(experts_host);
  }
  template <class F>
  void with_few_experts(F&& f) const {
    on_card ? f(experts_decode) : f(experts_host);
  }
  // Why a token's launches cannot be recorded as one graph; empty when they can.
  std::string why_no_graph() const;
  // Counts every op's calls between the two reports once more: a graph's replay.
  void count_again(const std::vector<DispatchReport>& before,
                   const std::vector<DispatchReport>& after);

  // Scratch that any call of a session may need.
  std::size_t scratch_bytes(
      const Weights& weights, int chunk, int context, KvType kv, Numerics numerics) const;

 private:
  // f(dispatch) for every op, in the registry's order.
  template <class Self, class F>
  static void each(Self& ops, F&& f);
};

}  // namespace assay
