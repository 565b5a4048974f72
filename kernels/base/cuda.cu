// A kernel that does nothing, whose presence in the binary for this card stands for all the others'.
#include "kernels/base/cuda.h"
#include "kernels/base/launch.cuh"

namespace assay::cuda_detail {
namespace {

__global__ void probe_kernel() {}

}  // namespace

const char* why_no_code() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, probe_kernel) == cudaSuccess) return nullptr;
  (void)cudaGetLastError();
  return "this build holds no code for its architecture (CMAKE_CUDA_ARCHITECTURES)";
}

}  // namespace assay::cuda_detail
