#include "kernels/base/cuda.h"

#include <cstring>
#include <mutex>
#include <string>

#include "kernels/base/env.h"
#include "kernels/base/gpu_memory.h"
#include "kernels/base/log.h"

namespace assay {
namespace cuda_detail {
namespace {

// From the repository's root: full paths of the build machine do not belong in messages.
std::string place(const char* file, int line) {
  for (const char* folder : {"kernels/", "variants/", "parity/", "bench/", "engine/"}) {
    if (const char* at = std::strstr(file, folder)) {
      file = at;
      break;
    }
  }
  return std::string(file) + ":" + std::to_string(line);
}

std::string text(cudaError_t error, const char* expression, const char* file, int line) {
  return place(file, line) + ": " + expression + ": " + cudaGetErrorName(error) + " (" +
         cudaGetErrorString(error) + ")";
}

// Errors after which every further call of the process fails.
bool sticky(cudaError_t error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
         error == cudaErrorMisalignedAddress || error == cudaErrorIllegalInstruction ||
         error == cudaErrorInvalidAddressSpace || error == cudaErrorInvalidPc ||
         error == cudaErrorHardwareStackError || error == cudaErrorAssert ||
         error == cudaErrorLaunchTimeout || error == cudaErrorECCUncorrectable;
}

}  // namespace

void fail(cudaError_t error, const char* expression, const char* file, int line) {
  if (sticky(error)) {
    throw CudaError(text(error, expression, file, line) +
                    "; the device context is lost, this process can do no more GPU work");
  }
  (void)cudaGetLastError();
  throw CudaError(text(error, expression, file, line));
}

void fail(cublasStatus_t status, const char* expression, const char* file, int line) {
  throw CudaError(place(file, line) + ": " + expression + ": cuBLAS status " +
                  std::to_string(static_cast<int>(status)));
}

void log_failure(cudaError_t error, const char* expression, const char* file, int line) noexcept {
  try {
    ASSAY_LOG(error, "{}", text(error, expression, file, line));
  } catch (...) {  // a destructor has nowhere to report to
  }
}

bool wait_after_launch(cudaStream_t stream) {
  static const bool wanted = Env::read().get("ASSAY_SYNC") == "1";
  if (!wanted) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusNone;
}

}  // namespace cuda_detail

cublasHandle_t cublas_on(Stream stream) {
  // cuBLAS's own recommendation for Hopper; smaller parts need less.
  constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
  struct Library {
    gpu::Buffer workspace{kWorkspaceBytes};
    cublasHandle_t handle = nullptr;
    Library() { ASSAY_CUBLAS(cublasCreate(&handle)); }
  };
  // Never destroyed: at exit the driver may be gone before static destructors run.
  static Library* const library = new Library;
  ASSAY_CUBLAS(cublasSetStream(library->handle, stream.cuda));
  // cublasSetStream drops the workspace.
  ASSAY_CUBLAS(cublasSetWorkspace(library->handle, library->workspace.data(), kWorkspaceBytes));
  return library->handle;
}

}  // namespace assay
