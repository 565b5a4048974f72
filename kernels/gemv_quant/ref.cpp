#include "kernels/gemv_quant/op.h"

namespace assay {

std::string GemvQuant::Shape::describe() const {
  return "tokens=" + std::to_string(tokens) + " rows=" + std::to_string(rows) +
         " cols=" + std::to_string(cols) + " type=" + to_string(type) +
         " numerics=" + to_string(numerics);
}
std::size_t GemvQuant::workspace_bytes(const Shape&) { return 0; }
double GemvQuant::bytes_moved(const Shape& s) {
  return static_cast<double>(row_bytes(s.type, s.cols)) * s.rows +
         4.0 * s.tokens * (s.cols + s.rows);
}
double GemvQuant::flops(const Shape& s) { return 2.0 * s.tokens * s.rows * s.cols; }
double GemvQuant::error_bound(const Shape& s) { return 1e-6 * (1.0 + 0.001 * s.cols); }

std::vector<std::vector<double>> GemvQuant::reference(const Shape& s, const Args& a) {
  std::vector<double> y(static_cast<std::size_t>(s.tokens) * static_cast<std::size_t>(s.rows));
  std::vector<float> w(static_cast<std::size_t>(s.cols));
  for (int r = 0; r < s.rows; ++r) {
    dequantize(s.type, a.w.row(r), w.size(), w.data());
    for (int t = 0; t < s.tokens; ++t) {
      double sum = 0.0;
      for (std::size_t c = 0; c < w.size(); ++c) {
        sum += static_cast<double>(w[c]) * a.x[static_cast<std::size_t>(t) * w.size() + c];
      }
      y[static_cast<std::size_t>(t) * static_cast<std::size_t>(s.rows) +
        static_cast<std::size_t>(r)] = sum;
    }
  }
  return {y};
}

}  // namespace assay
