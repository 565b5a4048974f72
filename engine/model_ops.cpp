#include "engine/model_ops.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace assay {
namespace {

template <class Op>
Dispatch<Op> make(const ModelSettings& s, const DeviceInfo& device) {
  const auto it = s.selection.choices.find(Op::kName);
  return Dispatch<Op>(it != s.selection.choices.end() ? it->second : Choice{}, device, s.strict);
}

// The layout that the chosen variant reads, if it runs on this backend at all.
template <class Op>
LayoutWish wish(const Dispatch<Op>& d) {
  const Variant<Op>& v = d.chosen();
  if (v.stage == Stage::kStock || v.column(d.device().backend).fn == nullptr) return {};
  return {v.layout, false};
}

}  // namespace

template <class Self, class F>
void Model::Ops::each(Self& ops, F&& f) {
  f(ops.gemv);
  f(ops.gemm);
  f(ops.experts_host);
  f(ops.experts_decode);
  f(ops.experts_prefill);
  f(ops.attention_prefill);
  f(ops.attention_decode);
  f(ops.router);
  f(ops.attention_block);
  f(ops.ffn_block);
  f(ops.decode_token);
}

Model::Ops::Ops(const ModelSettings& s, const DeviceInfo& d)
    : on_card(d.backend == Backend::kCuda),
      gemv(make<GemvQuant>(s, d)),
      gemm(make<GemmQuant>(s, d)),
      experts_host(make<ExpertsHost>(s, d)),
      experts_decode(make<ExpertsDecode>(s, d)),
      experts_prefill(make<ExpertsPrefill>(s, d)),
      attention_prefill(make<AttentionPrefill>(s, d)),
      attention_decode(make<AttentionDecode>(s, d)),
      router(make<RouterTopk>(s, d)),
      attention_block(make<AttentionBlock>(s, d)),
      ffn_block(make<FfnBlock>(s, d)),
      decode_token(make<DecodeToken>(s, d)) {
  const auto need = [&](const auto& dispatch) {
    if (dispatch.stock().column(d.backend).fn == nullptr) {
      throw HardwareError(dispatch.report().op + " has no kernel for " + to_string(d.backend) +
                          " in this build");
    }
  };
  need(gemv);
  need(gemm);
  with_few_experts(need);
  need(experts_prefill);
  need(attention_prefill);
  need(attention_decode);
  need(router);
}

WeightLayouts Model::Ops::layouts() const {
  LayoutWish few;
  with_few_experts([&](const auto& d) { few = wish(d); });
  return {wish(gemv), wish(gemm), few, wish(experts_prefill)};
}

std::vector<DispatchReport> Model::Ops::reports() const {
  std::vector<DispatchReport> all;
  each(*this, [&](const auto& d) { all.push_back(d.report()); });
  return all;
}

std::string Model::Ops::why_no_graph() const {
  std::string why;
  each(*this, [&](const auto& d) {
    if (why.empty() && d.report().choice.parity)
      why = d.report().op + " runs under parity, which compares on the host after every call";
  });
  const auto waits = [&](const auto& d) {
    const auto& v = d.chosen();
    if (why.empty() && (v.host_sync || v.cuda.host_sync))
      why = d.report().op + "=" + d.report().choice.variant + " waits for the host";
  };
  waits(gemv);
  with_few_experts(waits);
  waits(attention_decode);
  waits(router);
  return why;
}

std::size_t Model::Ops::scratch_bytes(
    const Weights& weights, int chunk, int context, KvType kv, Numerics numerics) const {
  std::size_t most = 0;
  const auto need = [&](const auto& dispatch, const auto& shape) {
    most = std::max(most, dispatch.workspace_bytes(shape));
  };
  // Scratch may grow or shrink with the tokens, so both ends are asked.
  const int few[] = {1, std::min(kFewTokens, chunk)};
  const int many[] = {std::min(kFewTokens + 1, chunk), chunk};
  const auto product = [&](const Matrix& m) {
    for (const int t : few) need(gemv, product_shape<GemvQuant>(m.few, t, numerics));
    for (const int t : many) need(gemm, product_shape<GemmQuant>(m.many, t, numerics));
  };
  const auto products = [&](const MatrixStack& s) {
    for (int p = 0; p < s.parts; ++p) product(s.part[p]);
  };
  product(weights.head());
  for (const AttentionWeights& w : weights.attention()) {
    products(w.qkv);
    product(w.o);
    const int slots = w.window > 0 ? std::min(w.window, context) : context;
    for (const int position : {0, context - 1})
      need(attention_decode, decode_shape(w, position, slots, kv, true));
    for (const int t : {std::min(2, chunk), chunk}) {
      for (const int past : {0, std::max(0, context - t)})
        need(attention_prefill, prefill_shape(w, t, past, slots, kv));
    }
  }
  for (const FfnWeights& w : weights.ffn()) {
    products(w.gate_up);
    product(w.down);
    product(w.router);
    for (const int t : few) {
      with_few_experts([&]<class Op>(const Dispatch<Op>& d) {
        need(d, experts_shape<Op>(w, w.experts_few, t, numerics));
      });
    }
    for (const int t : many)
      need(experts_prefill, experts_shape<ExpertsPrefill>(w, w.experts_many, t, numerics));
    for (const int t : {1, chunk}) need(router, RouterTopk::Shape{t, w.experts, w.experts_used});
  }
  return most;
}

void Model::Ops::count_again(const std::vector<DispatchReport>& before,
                             const std::vector<DispatchReport>& after) {
  std::size_t i = 0;
  each(*this, [&](auto& d) {
    d.count_again(before[i], after[i]);
    ++i;
  });
}

}  // namespace assay
