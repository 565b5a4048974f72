// CUDA calls, checked. Included by .cu files and by the CUDA half of kernels/base only; everyone else uses gpu_memory.h.
//   ASSAY_CUDA(x)          throws CudaError; a non-sticky error is cleared first, so that it is reported once
//   ASSAY_CUDA_NOTHROW(x)  logs, for destructors
//   ASSAY_CUBLAS(x)        throws CudaError
// ASSAY_LAUNCHED() lives in the launch helper (launch.cuh), the only place that launches kernels.
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "kernels/base/error.h"
#include "kernels/base/stream.h"

namespace assay {

// A CUDA or cuBLAS call failed: expression, file, line and the error's name. Exit 1.
class CudaError : public Error {
 public:
  explicit CudaError(const std::string& message) : Error(Exit::kCheckFailed, message) {}
};

namespace cuda_detail {

[[noreturn]] void fail(cudaError_t error, const char* expression, const char* file, int line);
[[noreturn]] void fail(cublasStatus_t status, const char* expression, const char* file, int line);
void log_failure(cudaError_t error, const char* expression, const char* file, int line) noexcept;
// Whether ASSAY_SYNC=1 asked for a wait after every launch; false while a stream is being captured.
bool wait_after_launch(cudaStream_t stream);
// Why the kernels of this build cannot run on the current device (its architecture was not compiled in); null when they can.
const char* why_no_code();

}  // namespace cuda_detail

// The process's cuBLAS handle, set to the stream, with a workspace of its own (so that a launch allocates nothing and can
// be captured). Made with the first gpu::Queue. For one launching thread at a time.
cublasHandle_t cublas_on(Stream stream);

}  // namespace assay

#define ASSAY_CUDA(x)                                                  \
  do {                                                                 \
    const cudaError_t assay_error = (x);                               \
    if (assay_error != cudaSuccess)                                    \
      ::assay::cuda_detail::fail(assay_error, #x, __FILE__, __LINE__); \
  } while (false)
#define ASSAY_CUDA_NOTHROW(x)                                                 \
  do {                                                                        \
    const cudaError_t assay_error = (x);                                      \
    if (assay_error != cudaSuccess)                                           \
      ::assay::cuda_detail::log_failure(assay_error, #x, __FILE__, __LINE__); \
  } while (false)
#define ASSAY_CUBLAS(x)                                                 \
  do {                                                                  \
    const cublasStatus_t assay_status = (x);                            \
    if (assay_status != CUBLAS_STATUS_SUCCESS)                          \
      ::assay::cuda_detail::fail(assay_status, #x, __FILE__, __LINE__); \
  } while (false)
