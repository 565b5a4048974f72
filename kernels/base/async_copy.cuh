// Sixteen bytes from global to shared memory without passing registers (cp.async, sm_80 and newer), so that a thread can
// have many on their way; before sm_80 and on the CPU executor a plain copy, which is done at once.
#pragma once
#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define ASSAY_CP_ASYNC 1
#endif

namespace assay::device {

// Both 16-byte aligned. `to` is shared memory.
__device__ inline void async_copy16(std::byte* to, const std::byte* from) {
#if defined(ASSAY_CP_ASYNC)
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  // cg: not kept in L1; what is staged is read once.
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
#else
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
#endif
}
// Closes a group of this thread's copies.
__device__ inline void async_commit() {
#if defined(ASSAY_CP_ASYNC)
  asm volatile("cp.async.commit_group;");
#endif
}
// Until at most N of this thread's groups are on their way. Other threads' copies need a barrier after it.
template <int N>
__device__ inline void async_wait() {
#if defined(ASSAY_CP_ASYNC)
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

}  // namespace assay::device
