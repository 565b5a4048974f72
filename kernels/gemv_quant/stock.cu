// y[t][r] = sum_c W[r][c] * x[t][c] by the book: rows to float in scratch, then multiplied.
//
// Per tile of rows that fits the workspace: a kernel with a thread per element writes W in float (4 bytes a weight), a
// second with a warp per row multiplies, lane j being chain j of the exact order, so that the bits are the host's.
// No shared memory. Bound: (block bytes + 8 bytes a weight) of traffic, about 9 bytes a weight against 0.56 for Q4_0: the
// scratch is what a fused kernel saves. Reads the float activations in both lanes.
#include "kernels/base/device_rows.cuh"
#include "kernels/gemv_quant/op.h"

namespace assay {

void launch_stock(const GemvQuant::Shape& s,
                  const GemvQuant::Args& a,
                  Workspace workspace,
                  Stream stream) {
  auto* scratch = reinterpret_cast<float*>(workspace.data);  // [tile][cols]
  const int tile = device::tile_rows(workspace.bytes, s.rows, s.cols);
  for (int first = 0; first < s.rows; first += tile) {
    const int rows = s.rows - first < tile ? s.rows - first : tile;
    device::dequantize_rows(a.w, first, rows, scratch, stream);
    device::multiply_rows(scratch,
                          rows,
                          s.cols,
                          a.x,
                          s.tokens,
                          a.y + first,
                          static_cast<std::size_t>(s.rows),
                          stream);
  }
}

}  // namespace assay
