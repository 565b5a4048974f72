// gemm_quant: y[t][r] = sum_c W[r][c] * x[t][c] for many tokens (prefill). W is a GGUF-quantised matrix.
// Not responsible for: bias, activation functions, quantising x (kernels/base/blocks.h quantize_q8 does).
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

struct GemmQuant {
  static constexpr const char* kName = "gemm_quant";
  static constexpr const char* kSwitch = "ASSAY_GEMM_QUANT";
  static constexpr const char* kSummary = "Y = X W^T for up to 65536 tokens, W quantised";
  static constexpr OpKind kKind = OpKind::kKernel;

  struct Shape {
    int tokens = 1;  // rows of x and y, 1..65536
    int rows = 0;    // output features, 1..2^24
    int cols = 0;    // input features, a multiple of the type's block, 1..2^20
    BlockType type = BlockType::kQ4_0;
    Numerics numerics = Numerics::kExact;
    // Whether the int8 activations are what is multiplied: the fast lane with weights that have codes.
    bool reads_q8() const { return numerics == Numerics::kFast && has_codes(type); }
    std::string describe() const;
  };

  struct Args {
    QuantView w;  // [rows][cols], the file's layout unless the variant declares another
    const float* x = nullptr;  // [tokens][cols] row-major, 4-byte aligned, not aliased
    Q8View
        xq;  // x in int8 blocks of 32, codes in -127..127; read only when reads_q8(), else may be null
    float* y = nullptr;  // [tokens][rows] row-major, written whole, not aliased
  };

  // Order of the float operations: kernels/base/quant_dot.h, the same in gemv_quant and gemm_quant, so that prefill and
  // decode agree bit for bit on the host. When reads_q8() only xq is read (x may be null then), otherwise only x.
  // Stock also takes weights in a variant's layout (it rebuilds file rows). NaN and infinity propagate as IEEE says; a
  // NaN is stored as 0x7FC00000. Same bits on repeat, for any thread count, and per row whatever the other tokens are.
  // Empty input: not legal. In-place: no. Graph capture: yes.
  static std::size_t workspace_bytes(const Shape&);
  static double bytes_moved(const Shape&);
  static double flops(const Shape&);
  // Relative L2 against the lane's double reference (dot_error_bound).
  static double error_bound(const Shape&);

  template <class V>
  static void fields(const Shape& s, Args& a, V&& v) {
    v.quant("w", a.w, s.type, s.rows, s.cols);
    const auto n = static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.cols);
    v("x", a.x, n, Dir::kIn);
    if (s.reads_q8()) {
      v("xq_codes", a.xq.codes, n, Dir::kIn);
      v("xq_scales", a.xq.scales, n / kQ8Block, Dir::kIn);
    }
    v("y", a.y, static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.rows), Dir::kOut);
  }

  struct Case {
    std::string name;
    Shape shape;
    bool mostly_nonfinite = false;
    Pattern pattern = Pattern::kPlain;
  };
  static std::vector<Case> cases();
  static void fill(const Case&, const Filler&);
  static std::vector<std::vector<double>> reference(const Shape&, const Args&);
};

}  // namespace assay
