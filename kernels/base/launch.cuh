// The launch helper: the only place where kernels start. A kernel is launched as
//   launch(kernel, grid, block, shared_bytes, stream, arguments..)
// and never by <<<>>>, so that a build without a GPU can execute the same source.
#pragma once
#include <cstddef>
#include <utility>

#include <cuda_runtime.h>

#include "kernels/base/cuda.h"
#include "kernels/base/gpu_memory.h"

// After a launch: a bad configuration throws at once; with ASSAY_SYNC=1 a failing kernel throws at its own launch.
#define ASSAY_LAUNCHED(stream)                                  \
  do {                                                          \
    ASSAY_CUDA(cudaGetLastError());                             \
    if (::assay::cuda_detail::wait_after_launch((stream).cuda)) \
      ASSAY_CUDA(cudaStreamSynchronize((stream).cuda));         \
  } while (false)

namespace assay {

namespace launch_detail {
template <class... Params, class... Given>
void start(bool early,
           void (*kernel)(Params...),
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
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  ASSAY_CUDA(
      cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Given>(given))...));
  ASSAY_LAUNCHED(stream);
}
}  // namespace launch_detail

// shared_bytes: dynamic shared memory a block, may exceed 48 KB up to the card's opt-in limit.
template <class... Params, class... Given>
void launch(void (*kernel)(Params...),
            dim3 grid,
            dim3 block,
            std::size_t shared_bytes,
            Stream stream,
            Given&&... given) {
  launch_detail::start(
      false, kernel, grid, block, shared_bytes, stream, std::forward<Given>(given)...);
}

// The same for a kernel that may start before the one ahead of it in the stream has ended (programmatic dependent launch), where
// the card can (sm_90) and that one calls let_later_start(). Until it has called wait_for_earlier() such a kernel must read
// nothing that a kernel of this stream writes, and write nothing: weights, which are copied to the card, may be fetched.
template <class... Params, class... Given>
void launch_early(void (*kernel)(Params...),
                  dim3 grid,
                  dim3 block,
                  std::size_t shared_bytes,
                  Stream stream,
                  Given&&... given) {
  launch_detail::start(gpu::device().cc >= 90,
                       kernel,
                       grid,
                       block,
                       shared_bytes,
                       stream,
                       std::forward<Given>(given)...);
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

namespace device {

// In a kernel of launch_early: returns when all that earlier kernels of the stream write can be read.
__device__ inline void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// From here on the next kernel may start, if it was launched by launch_early; it still waits for the end of this one before
// it reads a result.
__device__ inline void let_later_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Asks for the 128 bytes around p, which come into the L2 cache.
__device__ inline void prefetch(const void* p) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
  static_cast<void>(p);
#endif
}

}  // namespace device
}  // namespace assay
