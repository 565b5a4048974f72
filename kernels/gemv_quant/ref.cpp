#include "kernels/base/quant_dot.h"
#include "kernels/base/quant_rows.h"
#include "kernels/gemv_quant/op.h"

namespace assay {

std::string GemvQuant::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " rows=" + std::to_string(rows) +
         " cols=" + std::to_string(cols) + " type=" + to_string(type) +
         " numerics=" + to_string(numerics);
}
std::size_t GemvQuant::workspace_bytes(const Shape& s) {
  // Activation rows in the form that vector kernels read (kernels/base/quant_rows.h).
  return activation_bytes(s.tokens, s.cols, s.reads_q8());
}
double GemvQuant::bytes_moved(const Shape& s) {
  return static_cast<double>(row_bytes(s.type, s.cols)) * s.rows +
         4.0 * s.tokens * (s.cols + s.rows);
}
double GemvQuant::flops(const Shape& s) { return 2.0 * s.tokens * s.rows * s.cols; }
double GemvQuant::error_bound(const Shape& s) {
  return dot_error_bound(s.numerics, s.type, s.cols);
}

std::vector<std::vector<double>> GemvQuant::reference(const Shape& s, const Args& a) {
  const auto rows = static_cast<std::size_t>(s.rows);
  const auto cols = static_cast<std::size_t>(s.cols);
  std::vector<double> y(static_cast<std::size_t>(s.tokens) * rows);
  std::vector<float> w(cols);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::byte* row = a.w.row(static_cast<int>(r));
    if (!s.reads_q8()) dequantize(s.type, row, cols, w.data());
    for (std::size_t t = 0; t < static_cast<std::size_t>(s.tokens); ++t) {
      y[t * rows + r] =
          s.reads_q8()
              ? reference_dot_fast(
                    s.type, row, cols, a.xq.codes + t * cols, a.xq.scales + t * (cols / kQ8Block))
              : reference_dot_exact(w.data(), a.x + t * cols, cols);
    }
  }
  return {y};
}

}  // namespace assay
