#include "kernels/base/simt/cuda_runtime.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/base/simt/cublas_v2.h"
#include "kernels/base/simt/pretend.h"

struct CUstream_st {
  CUgraph_st* recording = nullptr;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
};
struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> nodes;
};
struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace {

std::size_t used = 0;
int captures = 0;  // streams being captured
std::map<void*, std::size_t> allocations;
std::mutex guard;

cudaError_t unsafe_in_capture() {
  return captures > 0 ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

}  // namespace

namespace assay::simt {

Claim claim;

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
  // The default stream has no object; touching it while another is captured would break that capture.
  if (stream == nullptr && captures > 0) return cudaErrorStreamCaptureUnsupported;
  if (stream != nullptr && stream->recording != nullptr) {
    stream->recording->nodes.push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

}  // namespace assay::simt

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "cudaError";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorStreamCaptureUnsupported
             ? "operation not permitted when stream is capturing"
             : cudaGetErrorName(error);
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = assay::simt::claim.cards;
  return assay::simt::claim.error;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "CPU executor (simt)");
  p->major = assay::simt::claim.major;
  p->minor = assay::simt::claim.minor;
  p->multiProcessorCount = 4;
  p->sharedMemPerBlockOptin = 227 * 1024;
  p->totalGlobalMem = assay::simt::claim.memory_bytes;
  p->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  const std::lock_guard lock(guard);
  *free_bytes = assay::simt::claim.memory_bytes - used;
  *total = assay::simt::claim.memory_bytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  if (const auto e = unsafe_in_capture()) return e;
  const std::lock_guard lock(guard);
  if (bytes > assay::simt::claim.memory_bytes - used) return cudaErrorMemoryAllocation;
  // Exactly as many bytes as asked for, so that a memory checker sees the first one too far.
  *p = ::operator new (bytes, std::align_val_t{256}, std::nothrow);
  if (*p == nullptr) return cudaErrorMemoryAllocation;
  used += bytes;
  allocations[*p] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (const auto e = unsafe_in_capture()) return e;
  if (p == nullptr) return cudaSuccess;
  const std::lock_guard lock(guard);
  const auto it = allocations.find(p);
  if (it == allocations.end()) return cudaErrorInvalidValue;
  used -= it->second;
  allocations.erase(it);
  ::operator delete (p, std::align_val_t{256});
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) { return cudaMalloc(p, bytes); }
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return assay::simt::submit(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t stream) {
  return assay::simt::submit(stream, [=] { std::memset(p, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  const cudaError_t unsafe = unsafe_in_capture();
  return unsafe != cudaSuccess ? unsafe : assay::simt::claim.wait;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream != nullptr && stream->recording != nullptr ? cudaStreamCaptureStatusActive
                                                              : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->recording = new CUgraph_st;
  ++captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream->recording == nullptr) return cudaErrorInvalidValue;
  *graph = stream->recording;
  stream->recording = nullptr;
  --captures;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const auto& node : exec->nodes) {
    if (const auto e = assay::simt::submit(stream, node)) return e;
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return unsafe_in_capture(); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->at - start->at).count();
  return cudaSuccess;
}

// ---- cuBLAS: plain loops, one running sum a value ----

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

namespace {

template <class T>
cublasStatus_t gemm(cublasHandle_t handle,
                    cublasOperation_t op_a,
                    cublasOperation_t op_b,
                    int m,
                    int n,
                    int k,
                    float alpha,
                    const T* a,
                    int lda,
                    const T* b,
                    int ldb,
                    float beta,
                    float* c,
                    int ldc) {
  if (op_a != CUBLAS_OP_T || op_b != CUBLAS_OP_N) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (lda < k || ldb < k || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
  const auto e = assay::simt::submit(handle->stream, [=] {
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < m; ++i) {
        float sum = 0.0F;
        for (int p = 0; p < k; ++p) {
          sum += static_cast<float>(a[static_cast<std::size_t>(i) * static_cast<std::size_t>(lda) +
                                      static_cast<std::size_t>(p)]) *
                 static_cast<float>(b[static_cast<std::size_t>(j) * static_cast<std::size_t>(ldb) +
                                      static_cast<std::size_t>(p)]);
        }
        float& out = c[static_cast<std::size_t>(j) * static_cast<std::size_t>(ldc) +
                       static_cast<std::size_t>(i)];
        out = beta == 0.0F ? alpha * sum : alpha * sum + beta * out;
      }
    }
  });
  return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

cublasStatus_t cublasSgemm(cublasHandle_t handle,
                           cublasOperation_t op_a,
                           cublasOperation_t op_b,
                           int m,
                           int n,
                           int k,
                           const float* alpha,
                           const float* a,
                           int lda,
                           const float* b,
                           int ldb,
                           const float* beta,
                           float* c,
                           int ldc) {
  return gemm(handle, op_a, op_b, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle,
                            cublasOperation_t op_a,
                            cublasOperation_t op_b,
                            int m,
                            int n,
                            int k,
                            const void* alpha,
                            const void* a,
                            cudaDataType a_type,
                            int lda,
                            const void* b,
                            cudaDataType b_type,
                            int ldb,
                            const void* beta,
                            void* c,
                            cudaDataType c_type,
                            int ldc,
                            cublasComputeType_t compute,
                            cublasGemmAlgo_t) {
  if (a_type != CUDA_R_16F || b_type != CUDA_R_16F || c_type != CUDA_R_32F ||
      compute != CUBLAS_COMPUTE_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return gemm(handle,
              op_a,
              op_b,
              m,
              n,
              k,
              *static_cast<const float*>(alpha),
              static_cast<const __half*>(a),
              lda,
              static_cast<const __half*>(b),
              ldb,
              *static_cast<const float*>(beta),
              static_cast<float*>(c),
              ldc);
}
