// experts_decode: the routed experts' feed-forward of few tokens (decode), all experts resident where it runs. For each token
//   out = sum over k in rank order of weight[k] * (Down_e u),  u = gelu_tanh(Gate_e x) * (Up_e x),  e = ids[k].
// Not responsible for: routing, norms, quantising x, the dense branch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/blocks.h"
#include "kernels/base/op_info.h"
#include "kernels/base/quant_cases.h"
#include "kernels/base/registry.h"

namespace assay {

class Filler;

struct ExpertsDecode {
  static constexpr const char* kName = "experts_decode";
  static constexpr const char* kSwitch = "ASSAY_EXPERTS_DECODE";
  static constexpr const char* kSummary = "resident routed experts for few tokens";
  static constexpr OpKind kKind = OpKind::kKernel;

  struct Shape {
    int tokens = 1;     // 1..64
    int hidden = 0;     // D, 1..2^16, a multiple of the gate/up type's block
    int width = 0;      // F, an expert's width, 1..2^16, a multiple of the down type's block
    int experts = 1;    // E, 1..1024
    int top_k = 1;      // experts a token, 1..64
    bool fused = true;  // gate and up in one tensor (rows 0..F-1 and F..2F-1 of an expert) or two
    BlockType gate_up_type = BlockType::kQ4_0;
    BlockType down_type = BlockType::kQ4_0;
    Numerics numerics = Numerics::kExact;
    // Whether the gate/up (down) product is the int8 one: the fast lane with weights that have codes.
    bool reads_q8() const { return numerics == Numerics::kFast && has_codes(gate_up_type); }
    bool down_reads_q8() const { return numerics == Numerics::kFast && has_codes(down_type); }
    std::string describe() const;
  };

  struct Args {
    QuantView gate_up;  // [experts * 2F][D] when fused: expert e is rows 2F e .. 2F e + 2F - 1
    QuantView gate;     // [experts * F][D] when not fused
    QuantView up;       // [experts * F][D] when not fused
    QuantView down;     // [experts * D][F]: expert e is rows D e .. D e + D - 1
    // [tokens][top_k] in rank order; 0..experts-1, or -1: the slot adds nothing.
    const std::int32_t* ids = nullptr;
    const float* weights = nullptr;  // [tokens][top_k]; not read where the id is -1
    const float* x = nullptr;        // [tokens][D], not aliased
    Q8View
        xq;  // x in int8 blocks of 32, codes in -127..127; read only when reads_q8(), else may be null
    float* out = nullptr;  // [tokens][D], written whole, not aliased
  };

  // Order of the float operations, the same in experts_host and experts_prefill, so that all three agree bit for bit:
  //   g, v    = rows of Gate_e and Up_e times x as kernels/base/quant_dot.h orders them (xq when reads_q8(), else x)
  //   u[f]    = gelu_fixed(g[f]) * v[f]  (kernels/base/fixed_math.h)
  //   y       = rows of Down_e times u; when down_reads_q8() u goes through quantize_q8 first
  //   out[r]  = +0; for k = 0, 1, ..: out[r] = fma(weight[k], y[r], out[r]); a NaN is stored as 0x7FC00000
  // An expert may come up in several tokens and several times in one token. Same bits on repeat, for any thread count,
  // and per token whatever the other tokens are. Stock also takes weights in a variant's layout. In-place: no.
  // Graph capture: yes.
  static std::size_t workspace_bytes(const Shape&);
  static double bytes_moved(const Shape&);  // with every id distinct until the experts run out
  static double flops(const Shape&);
  // Relative L2 against the lane's double reference. Derivation in ref.cpp.
  static double error_bound(const Shape&);

  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    if (s.fused) {
      v.quant("gate_up", a.gate_up, s.gate_up_type, s.experts * 2 * s.width, s.hidden);
    } else {
      v.quant("gate", a.gate, s.gate_up_type, s.experts * s.width, s.hidden);
      v.quant("up", a.up, s.gate_up_type, s.experts * s.width, s.hidden);
    }
    v.quant("down", a.down, s.down_type, s.experts * s.hidden, s.width);
    const auto t = static_cast<std::size_t>(s.tokens);
    const auto n = t * static_cast<std::size_t>(s.hidden);
    v("ids", a.ids, t * static_cast<std::size_t>(s.top_k), Dir::kIn);
    v("weights", a.weights, t * static_cast<std::size_t>(s.top_k), Dir::kIn);
    v("x", a.x, n, Dir::kIn);
    if (s.reads_q8()) {
      v("xq_codes", a.xq.codes, n, Dir::kIn);
      v("xq_scales", a.xq.scales, n / kQ8Block, Dir::kIn);
    }
    v("out", a.out, n, Dir::kOut);
  }

  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
    Pattern pattern = Pattern::kPlain;
    Routing routing = Routing::kUniform;
  };
  static std::vector<Case> cases();
  static void fill(const Case&, const Filler&);
  static std::vector<std::vector<double>> reference(const Shape&, const Args&);
};

}  // namespace assay
