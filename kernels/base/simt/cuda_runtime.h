// Device code's vocabulary on the CPU: qualifiers, built-in variables, barriers, warp functions, intrinsics.
#pragma once
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

#include "kernels/base/simt/cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __restrict__ __restrict
// A block's shared memory: one block runs at a time on a thread.
#define __shared__ static thread_local
#define __grid_constant__

struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- barriers and warp functions ----
inline void __syncthreads() { ::assay::simt::block_barrier(); }
inline int __syncthreads_or(int v) { return ::assay::simt::block_barrier_or(v); }
inline int __syncthreads_count(int v) { return ::assay::simt::block_barrier_count(v); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) { (void)::assay::simt::ballot(mask, true); }
template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  const int lane = ::assay::simt::current->lane;
  return ::assay::simt::exchange(mask, v, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32) {
  const int lane = ::assay::simt::current->lane;
  const int source = lane ^ bits;
  return ::assay::simt::exchange(mask, v, source / width == lane / width ? source : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  const int lane = ::assay::simt::current->lane;
  const int source = lane + static_cast<int>(delta);
  return ::assay::simt::exchange(mask, v, source / width == lane / width ? source : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  const int lane = ::assay::simt::current->lane;
  const int source = lane - static_cast<int>(delta);
  return ::assay::simt::exchange(
      mask, v, source >= 0 && source / width == lane / width ? source : lane);
}
inline unsigned __ballot_sync(unsigned mask, int v) { return ::assay::simt::ballot(mask, v != 0); }
inline int __any_sync(unsigned mask, int v) { return __ballot_sync(mask, v) != 0; }
inline int __all_sync(unsigned mask, int v) { return __ballot_sync(mask, v) == mask; }

// ---- memory ----
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T atomicAdd(T* p, T v) {
  return std::atomic_ref<T>(*p).fetch_add(v);
}
template <class T>
T atomicExch(T* p, T v) {
  return std::atomic_ref<T>(*p).exchange(v);
}
template <class T>
T atomicCAS(T* p, T expected, T desired) {
  std::atomic_ref<T>(*p).compare_exchange_strong(expected, desired);
  return expected;
}
template <class T>
T atomicMax(T* p, T v) {
  T old = *p;
  if (v > old) *p = v;
  return old;
}

// ---- arithmetic ----
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1.0F / a; }
inline unsigned __float_as_uint(float f) { return std::bit_cast<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return std::bit_cast<float>(u); }
inline int __float_as_int(float f) { return std::bit_cast<int>(f); }
inline float __int_as_float(int i) { return std::bit_cast<float>(i); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __ffs(int v) { return v == 0 ? 0 : std::countr_zero(static_cast<unsigned>(v)) + 1; }
inline int __clz(int v) { return std::countl_zero(static_cast<unsigned>(v)); }
// The word `shift` bits up in two, at most the upper one.
inline std::uint32_t __funnelshift_rc(std::uint32_t low, std::uint32_t high, std::uint32_t shift) {
  const std::uint64_t both = low | (static_cast<std::uint64_t>(high) << 32);
  return static_cast<std::uint32_t>(both >> (shift < 32 ? shift : 32));
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<std::int8_t>(a >> (8 * i)) * static_cast<std::int8_t>(b >> (8 * i));
  }
  return c;
}

// ---- launching ----
template <class... Params, class... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                               void (*kernel)(Params...),
                               Given&&... given) {
  const cudaLaunchConfig_t c = *config;
  return ::assay::simt::submit(
      c.stream, [c, kernel, args = std::tuple<Params...>(std::forward<Given>(given)...)] {
        ::assay::simt::run_grid(
            c.gridDim, c.blockDim, c.dynamicSmemBytes, [&] { std::apply(kernel, args); });
      });
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
  *attributes = {};
  return cudaSuccess;
}
