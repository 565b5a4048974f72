// Y[t][r] = sum_c X[t][c] * W[r][c] by the book: rows to float in scratch, then cublasSgemm in plain float.
//
// Per tile of rows that fits the workspace: a thread per element writes W in float, then one library call. The math mode is
// pedantic, so that TF32 (10-bit operands) never stands in for float on newer cards. Bound: float arithmetic outside the
// tensor cores. Reads the float activations in both lanes.
#include "kernels/base/device_rows.cuh"
#include "kernels/gemm_quant/op.h"

namespace assay {

void launch_stock(const GemmQuant::Shape& s,
                  const GemmQuant::Args& a,
                  Workspace workspace,
                  Stream stream) {
  auto* scratch = reinterpret_cast<float*>(workspace.data);  // [tile][cols]
  const int tile = device::tile_rows(workspace.bytes, s.rows, s.cols);
  const cublasHandle_t handle = cublas_on(stream);
  ASSAY_CUBLAS(cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH));
  const float one = 1.0F;
  const float zero = 0.0F;
  for (int first = 0; first < s.rows; first += tile) {
    const int rows = s.rows - first < tile ? s.rows - first : tile;
    device::dequantize_rows(a.w, first, rows, scratch, stream);
    // cuBLAS sees columns: our [rows][cols] is its cols x rows, so W is transposed and the result has ld = all rows.
    ASSAY_CUBLAS(cublasSgemm(handle,
                             CUBLAS_OP_T,
                             CUBLAS_OP_N,
                             rows,
                             s.tokens,
                             s.cols,
                             &one,
                             scratch,
                             s.cols,
                             a.x,
                             s.cols,
                             &zero,
                             a.y + first,
                             s.rows));
  }
}

}  // namespace assay
