// The launch helper: the only place where kernels start. A kernel is launched as
//   launch(kernel, grid, block, shared_bytes, stream, arguments..)
// and never by <<<>>>, so that a build without a GPU can execute the same source.
#pragma once
#include <cstddef>
#include <utility>

#include <cuda_runtime.h>

#include "kernels/base/cuda.h"

// After a launch: a bad configuration throws at once; with ASSAY_SYNC=1 a failing kernel throws at its own launch.
#define ASSAY_LAUNCHED(stream)                                  \
  do {                                                          \
    ASSAY_CUDA(cudaGetLastError());                             \
    if (::assay::cuda_detail::wait_after_launch((stream).cuda)) \
      ASSAY_CUDA(cudaStreamSynchronize((stream).cuda));         \
  } while (false)

namespace assay {

// shared_bytes: dynamic shared memory a block, may exceed 48 KB up to the card's opt-in limit.
template <class... Params, class... Given>
void launch(void (*kernel)(Params...),
            dim3 grid,
            dim3 block,
            std::size_t shared_bytes,
            Stream stream,
            Given&&... given) {
  constexpr std::size_t kDefaultLimit = 48 * 1024;  // more must be asked for, on every card
  if (shared_bytes > kDefaultLimit) {
    ASSAY_CUDA(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.cuda;
  ASSAY_CUDA(
      cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Given>(given))...));
  ASSAY_LAUNCHED(stream);
}

// Blocks of `per_block` that cover n.
inline unsigned blocks_for(std::size_t n, std::size_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

// The block's dynamic shared memory. 16-byte aligned.
#if defined(ASSAY_SIMT)
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(simt::dynamic_shared_memory());
}
#else
template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char assay_dynamic_shared[];
  return reinterpret_cast<T*>(assay_dynamic_shared);
}
#endif

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullWarp = 0xFFFFFFFFU;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / kWarp; }

// Sum over the warp in every lane; the order is the xor tree 16, 8, 4, 2, 1.
__device__ inline float warp_sum(float v) {
  for (int h = kWarp / 2; h >= 1; h /= 2) v = __fadd_rn(v, __shfl_xor_sync(kFullWarp, v, h));
  return v;
}
__device__ inline int warp_sum(int v) {
  for (int h = kWarp / 2; h >= 1; h /= 2) v += __shfl_xor_sync(kFullWarp, v, h);
  return v;
}
// Largest value over the warp; a NaN never wins.
__device__ inline float warp_max(float v) {
  for (int h = kWarp / 2; h >= 1; h /= 2) v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, h));
  return v;
}

}  // namespace assay
