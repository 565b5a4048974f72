// Scalar host stock: the order of operations of op.h written out.
#include <cmath>

#include "kernels/base/host_pool.h"
#include "kernels/gemv_quant/op.h"

namespace assay {
namespace {

float tree32(float* chain) {
  for (int h = 16; h >= 1; h /= 2) {
    for (int j = 0; j < h; ++j) chain[j] += chain[j + h];
  }
  return chain[0];
}

void run_stock(const GemvQuant::Shape& s, const GemvQuant::Args& a, Workspace, Stream stream) {
  parallel_for(
      stream.pool, static_cast<std::size_t>(s.rows), 8, [&](std::size_t begin, std::size_t end) {
        std::vector<float> w(static_cast<std::size_t>(s.cols));
        for (std::size_t r = begin; r < end; ++r) {
          dequantize(s.type, a.w.row(static_cast<int>(r)), w.size(), w.data());
          for (int t = 0; t < s.tokens; ++t) {
            const float* x = a.x + static_cast<std::size_t>(t) * w.size();
            float chain[32] = {};
            for (std::size_t c = 0; c < w.size(); ++c)
              chain[c % 32] = std::fma(w[c], x[c], chain[c % 32]);
            a.y[static_cast<std::size_t>(t) * static_cast<std::size_t>(s.rows) + r] = tree32(chain);
          }
        }
      });
}

}  // namespace

ASSAY_VARIANT(GemvQuant, stock){.summary = "scalar: dequantise a row, then multiply",
                                .stage = Stage::kStock,
                                .exactness = Exactness::kBounded,
                                .deterministic = true,
                                .batch_invariant = true,
                                .host = ASSAY_HOST(run_stock)};

}  // namespace assay
