// Floats that become 8-bit floats, saturated: what is larger than the largest becomes that.
#pragma once

#include "device/reduce.cuh"

namespace commlib {

template <class To>
struct Largest;
template <>
struct Largest<e4m3> {
  static constexpr float value = 448.f;
};
template <>
struct Largest<e5m2> {
  static constexpr float value = 57344.f;
};

// NaN stays NaN: no comparison with it holds.
template <class To>
__device__ __forceinline__ u8 saturated(float x) {
  constexpr float largest = Largest<To>::value;
  x = x > largest ? largest : x < -largest ? -largest : x;
  return Codec<To>::store(x).bits;
}

// Two neighbours, the first in the low byte; GPUs since sm_89 have an instruction for it.
__device__ __forceinline__ unsigned short saturated_pair(e4m3, float a, float b) {
#if __CUDA_ARCH__ >= 890
  unsigned short both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  return both;
#else
  return saturated<e4m3>(a) | saturated<e4m3>(b) << 8;
#endif
}
__device__ __forceinline__ unsigned short saturated_pair(e5m2, float a, float b) {
#if __CUDA_ARCH__ >= 890
  unsigned short both;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  return both;
#else
  return saturated<e5m2>(a) | saturated<e5m2>(b) << 8;
#endif
}

}  // namespace commlib
