// Copies by the bulk copy engine of Hopper and later GPUs, between memory, here or at a peer, and
// shared memory.
#pragma once

#include "device/barrier.cuh"

namespace commlib {

#if __CUDA_ARCH__ >= 900
constexpr bool kHasBulk = true;
#else
constexpr bool kHasBulk = false;
#endif

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void fence_shared_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// What this thread has seen written, the engine's copies see too.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// All groups but the newest n have read their source; have been written.
template <int n>
__device__ __forceinline__ void await_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory");
}
template <int n>
__device__ __forceinline__ void await_written() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(n) : "memory");
}
#else
__device__ __forceinline__ void fence_shared_async() {}
__device__ __forceinline__ void fence_async() {}
__device__ __forceinline__ void bulk_copy(void*, const void*, u32, u64*) {}
__device__ __forceinline__ void bulk_store(void*, const void*, u32) {}
__device__ __forceinline__ void bulk_commit() {}
template <int n>
__device__ __forceinline__ void await_read() {}
template <int n>
__device__ __forceinline__ void await_written() {}
#endif

__device__ __forceinline__ void bulk_load(void* to, const void* from, u32 bytes, u64* barrier) {
  expect_bytes(bytes, barrier);
  bulk_copy(to, from, bytes, barrier);
}

}  // namespace commlib
