// router_topk: from router logits to the experts of each token.
//   ids[t]     = the top_k largest logits of row t, largest first, ties to the lowest id
//   weights[t] = softmax over those top_k logits (= softmax over all experts, renormalised over the chosen ones),
//                times scale[id]; not renormalised again.
// softmax is monotone, so selection compares the logits themselves: no rounding of exp can reorder experts.
// Not responsible for: the router's norm and projection.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay {

class Filler;

struct RouterTopk {
  static constexpr const char* kName = "router_topk";
  static constexpr const char* kSwitch = "ASSAY_ROUTER_TOPK";
  static constexpr const char* kSummary = "top-k experts of each token and their weights";
  static constexpr OpKind kKind = OpKind::kKernel;

  struct Shape {
    int tokens = 1;   // rows, 1..65536
    int experts = 1;  // 1..65536
    int top_k = 1;    // 1..min(experts, 64)
    std::string describe() const;
  };

  struct Args {
    const float* logits = nullptr;  // [tokens][experts]
    const float* scale = nullptr;   // [experts], the per-expert output scale
    std::int32_t* ids = nullptr;    // [tokens][top_k], written whole
    float* weights = nullptr;       // [tokens][top_k], written whole
  };

  // With m the row's largest logit: e_i = exp_fixed(logit_i - m); sum over the chosen in rank order from +0;
  // weight = (e / sum) * scale. Same bits on repeat, for any thread count, per row whatever the other rows are.
  // NaN: a NaN logit ranks below every number (among themselves by id) and makes all weights of its row NaN. +inf as
  // the largest logit does so too. A NaN is stored as 0x7FC00000. In-place: no. Graph capture: yes.
  static std::size_t workspace_bytes(const Shape&);
  static double bytes_moved(const Shape&);
  static double flops(const Shape&);
  static double error_bound(const Shape&);

  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    const auto tokens = static_cast<std::size_t>(s.tokens);
    const auto experts = static_cast<std::size_t>(s.experts);
    const auto chosen = tokens * static_cast<std::size_t>(s.top_k);
    v("logits", a.logits, tokens * experts, Dir::kIn);
    v("scale", a.scale, experts, Dir::kIn);
    v("ids", a.ids, chosen, Dir::kOut);
    v("weights", a.weights, chosen, Dir::kOut);
  }

  enum class Values { kNormal, kEqual, kQuantised, kHuge, kNan, kSkewed };
  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
    Values values = Values::kNormal;
  };
  static std::vector<Case> cases();
  static void fill(const Case&, const Filler&);
  static std::vector<std::vector<double>> reference(const Shape&, const Args&);
};

}  // namespace assay
