// What the threads that hold a row do together. Other threads of their block do not take part.
#pragma once

#include "commlib/rows.h"
#include "device/cluster.cuh"

namespace commlib {

constexpr int kRowWarps = kRowThreads / 32;

// Of this block: kRowThreads, or its part of them.
__device__ __forceinline__ void sync_row(u32 threads) {
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}
// Whether any thread says so.
__device__ __forceinline__ bool any_of_row(bool says, u32 threads) {
  u32 any;
  __syncwarp();
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, 1, %2, p;\nselp.u32 %0, 1, "
      "0, q;\n}"
      : "=r"(any)
      : "r"(u32{says}), "r"(threads)
      : "memory");
  return any != 0;
}

// All leave together if the wait of any of them failed: nobody is left at a later barrier.
__device__ __forceinline__ void leave_if(bool failed) {
  if (!any_of_row(failed, kRowThreads)) return;
  asm volatile("exit;");
  __builtin_unreachable();
}

// What each warp has, in two places by turns: who writes one of them again has passed a later
// barrier, which no thread reaches before it has read.
using RowParts = float[2][kRowWarps];  // of up to two numbers
struct RowBoard {
  alignas(16) RowParts parts[2];
  u64 came[2];  // of them, where other blocks send theirs
};

struct SumAndMax {
  float sum, max;
};

struct Added {
  static __device__ __forceinline__ float none() { return 0.f; }
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
// NaN wins.
struct Larger {
  static __device__ __forceinline__ float none() { return __uint_as_float(0xff800000u); }
  static __device__ __forceinline__ float of(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
};

// a[0], …, a[n - 1] by halves.
template <class Op, int n>
__device__ __forceinline__ float by_halves(const float (&a)[n]) {
  if constexpr (n == 1) {
    return a[0];
  } else {
    float half[n / 2];
#pragma unroll
    for (int i = 0; i < n / 2; ++i) half[i] = Op::of(a[i], a[i + n / 2]);
    return by_halves<Op>(half);
  }
}
// Of `kLanes` neighbours.
template <class Op, int kLanes>
__device__ __forceinline__ float of_lanes(float a) {
  if constexpr (kLanes == 1) {
    return a;
  } else {
    return of_lanes<Op, kLanes / 2>(Op::of(a, __shfl_xor_sync(0xffffffffu, a, kLanes / 2)));
  }
}

}  // namespace commlib
