// gemv_quant: y[t][r] = sum_c W[r][c] * x[t][c] for few tokens (decode). W is a GGUF-quantised matrix.
// Not responsible for: bias, activation functions, quantising x (kernels/base/blocks.h quantize_q8 does).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/blocks.h"
#include "kernels/base/op_info.h"
#include "kernels/base/registry.h"

namespace assay {

class Filler;

struct GemvQuant {
  static constexpr const char* kName = "gemv_quant";
  static constexpr const char* kSwitch = "ASSAY_GEMV_QUANT";
  static constexpr const char* kSummary = "y = W x for 1 to 8 tokens, W quantised";
  static constexpr OpKind kKind = OpKind::kKernel;

  struct Shape {
    int tokens = 1;  // rows of x and y, 1..8
    int rows = 0;    // output features, 1..2^24
    int cols = 0;    // input features, a multiple of the type's block, 1..2^20
    BlockType type = BlockType::kQ4_0;
    Numerics numerics = Numerics::kExact;
    std::string describe() const;
  };

  struct Args {
    QuantView w;  // [rows][cols], the file's layout unless the variant declares another
    const float* x = nullptr;  // [tokens][cols] row-major, 4-byte aligned, not aliased
    Q8View
        xq;  // x in int8 blocks of 32, read in the fast lane only (cols % 32 == 0 there); may be null in exact
    float* y = nullptr;  // [tokens][rows] row-major, written whole, not aliased
  };

  // Order of the float operations, so that scalar and vector code agree bit for bit:
  // exact: 32 chains; chain c takes elements c, c + 32, .. in order with fma(w, x, chain); then halving tree
  //        for h in 16, 8, 4, 2, 1: chain[j] += chain[j + h] for j < h; y = chain[0]. w = the block's value rounded once
  //        per operation of the format's formula.
  // fast (Q4_0, Q5_0, Q8_0): 8 chains; block b goes to chain b mod 8 with fma(d_w * d_x, float(isum), chain), isum the
  //        exact int32 sum of (code - offset) * q; tree ((0+1)+(2+3))+((4+5)+(6+7)).
  // Both: chains start at +0. Same bits on repeat, for any thread count, and per row whatever the other tokens are.
  // NaN and infinity propagate as IEEE says. In-place: no. Graph capture: yes.
  static std::size_t workspace_bytes(const Shape&);
  static double bytes_moved(const Shape&);
  static double flops(const Shape&);
  // Relative L2 against the lane's double reference. Derivation in ref.cpp.
  static double error_bound(const Shape&);

  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    v.quant("w", a.w, s.type, s.rows, s.cols);
    const auto n = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.cols);
    v("x", a.x, n, Dir::kIn);
    if (s.numerics == Numerics::kFast) {
      v("xq_codes", a.xq.codes, n, Dir::kIn);
      v("xq_scales", a.xq.scales, n / kQ8Block, Dir::kIn);
    }
    v("y", a.y, static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.rows), Dir::kOut);
  }

  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
    int kind = 0;  // which values fill() writes; see cases.cpp
  };
  static std::vector<Case> cases();
  static void fill(const Case&, const Filler&);
  static std::vector<std::vector<double>> reference(const Shape&, const Args&);
};

}  // namespace assay
