// Scalar host stock: kernels/base/quant_dot.h row by row.
#include <algorithm>
#include <cmath>

#include "kernels/base/host_pool.h"
#include "kernels/base/quant_dot.h"
#include "kernels/base/thread_scratch.h"
#include "kernels/gemm_quant/op.h"

namespace assay {
namespace {

void run_stock(const GemmQuant::Shape& s, const GemmQuant::Args& a, Workspace, Stream stream) {
  const auto rows = static_cast<std::size_t>(s.rows);
  const auto cols = static_cast<std::size_t>(s.cols);
  const auto tokens = static_cast<std::size_t>(s.tokens);
  parallel_for(stream.pool, rows, 1, [&](std::size_t begin, std::size_t end) {
    std::byte* scratch = thread_scratch<std::byte, struct FileRow>(a.w.row_bytes);
    float* w = thread_scratch<float, struct RowValues>(cols);  // [cols]
    for (std::size_t r = begin; r < end; ++r) {
      const std::byte* row = file_row(a.w, static_cast<int>(r), scratch);
      if (!s.reads_q8()) dequantize(s.type, row, cols, w);
      for (std::size_t t = 0; t < tokens; ++t) {
        a.y[t * rows + r] =
            s.reads_q8()
                ? dot_fast(
                      s.type, row, cols, a.xq.codes + t * cols, a.xq.scales + t * (cols / kQ8Block))
                : dot_exact(w, a.x + t * cols, cols);
      }
    }
  });
}

// CUDA: float scratch for as many rows as fit this, at least one.
constexpr std::size_t kScratchBytes = std::size_t{64} << 20;
std::size_t cuda_workspace_bytes(const GemmQuant::Shape& s) {
  const std::size_t row = static_cast<std::size_t>(s.cols) * sizeof(float);
  return std::max(row, std::min(kScratchBytes, row * static_cast<std::size_t>(s.rows)));
}
// A library product adds its terms in an order of its own, at worst one running sum of `cols` products: its error grows by
// about 0.3 eps sqrt(cols) where the contract's order has 0.4 eps sqrt(cols / 64). Twice that.
double cuda_error_bound(const GemmQuant::Shape& s) {
  return 0x1p-24 * (4.0 + 0.6 * std::sqrt(static_cast<double>(s.cols)));
}

}  // namespace

void launch_stock(const GemmQuant::Shape&, const GemmQuant::Args&, Workspace, Stream);

ASSAY_VARIANT(GemmQuant, stock){
    .summary =
        "scalar: one row at a time; codes times int8 activations, or dequantise and multiply",
    .stage = Stage::kStock,
    .exactness = Exactness::kBounded,
    .deterministic = true,
    .batch_invariant = true,
    .host = ASSAY_HOST(run_stock),
    .cuda = ASSAY_LAUNCH(launch_stock,
                         .workspace_bytes = cuda_workspace_bytes,
                         .error_bound = cuda_error_bound,
                         .float_activations = true,
                         .batch_dependent = true)};

}  // namespace assay
