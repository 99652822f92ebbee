// Barriers in shared memory that count the bytes which come there, of Hopper and later GPUs.
#pragma once

#include "device/memory.cuh"

namespace commlib {

__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void barrier_init(u64* barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
// So many bytes will come in this phase, in any number of pieces.
__device__ __forceinline__ void expect_bytes(u32 bytes, u64* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Whether they have come, after a short wait.
__device__ __forceinline__ bool has_come(u64* barrier, u32 phase) {
  u32 done = 0;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
      "p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(phase)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void await_bytes(u64* barrier, u32 phase) {
  while (!has_come(barrier, phase)) {
  }
}
#else
__device__ __forceinline__ void barrier_init(u64*) {}
__device__ __forceinline__ void expect_bytes(u32, u64*) {}
__device__ __forceinline__ bool has_come(u64*, u32) { return true; }
__device__ __forceinline__ void await_bytes(u64*, u32) {}
#endif

}  // namespace commlib
