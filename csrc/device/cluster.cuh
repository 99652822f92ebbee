// Blocks of a cluster write into each other's shared memory. No fence is needed: it would wait for
// what was sent to peers. GPUs before Hopper have no clusters, and cluster_of() is 1.
#pragma once

#include "device/barrier.cuh"

namespace commlib {

#if __CUDA_ARCH__ >= 900
#define COMMLIB_CLUSTER(blocks) __cluster_dims__(blocks)
constexpr int kMaxClusterBlocks = 8;

__device__ __forceinline__ u32 rank_in_cluster() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// This block is there, and so are the barriers that it has made.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed;" ::
                   : "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// Writes x where block `rank` has what `p` is here; its `barrier` counts the bytes.
__device__ __forceinline__ void send_in_cluster(u32 rank, const float* p, const u64* barrier,
                                                float x) {
  asm volatile(
      "{\n.reg .u32 at, count;\nmapa.shared::cluster.u32 at, %0, %2;\n"
      "mapa.shared::cluster.u32 count, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [at], %3, [count];\n}" ::"r"(
          shared_address(p)),
      "r"(shared_address(barrier)), "r"(rank), "f"(x)
      : "memory");
}
#else
#define COMMLIB_CLUSTER(blocks)
constexpr int kMaxClusterBlocks = 1;
__device__ __forceinline__ u32 rank_in_cluster() { return 0; }
__device__ __forceinline__ void arrive_at_cluster() {}
__device__ __forceinline__ void wait_for_cluster() {}
__device__ __forceinline__ void send_in_cluster(u32, const float*, const u64*, float) {}
#endif

__device__ constexpr int cluster_of(int wanted) {
  return wanted < kMaxClusterBlocks ? wanted : kMaxClusterBlocks;
}

}  // namespace commlib
