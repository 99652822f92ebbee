// Elements between memory and float, four at a time: a row is computed in float whatever its
// tensors hold. To memory they are rounded to the nearest, ties to even; types of 8 bits saturate.
#pragma once

#include "device/float8.cuh"
#include "device/memory.cuh"
#include "device/words.cuh"

namespace commlib {

// `kWords` words of 4 bytes hold four elements.
template <class E>
struct Four;

template <>
struct Four<float> {
  static constexpr int kWords = 4;
  static __device__ __forceinline__ void widen(const u32* w, float* v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __uint_as_float(w[i]);
  }
  static __device__ __forceinline__ void narrow(const float* v, u32* w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = __float_as_uint(v[i]);
  }
};

__device__ __forceinline__ u32 narrowed_two(half, float a, float b) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
}
__device__ __forceinline__ u32 narrowed_two(bfloat16, float a, float b) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
}

template <class E>
struct FourOf16Bits {
  static constexpr int kWords = 2;
  static __device__ __forceinline__ void widen(const u32* w, float* v) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] = Codec<E>::load(E{static_cast<unsigned short>(w[i / 2] >> (16 * (i % 2)))});
  }
  static __device__ __forceinline__ void narrow(const float* v, u32* w) {
    w[0] = narrowed_two(E{}, v[0], v[1]);
    w[1] = narrowed_two(E{}, v[2], v[3]);
  }
};
template <>
struct Four<half> : FourOf16Bits<half> {};
template <>
struct Four<bfloat16> : FourOf16Bits<bfloat16> {};

template <class E>
struct FourOf8Bits {
  static constexpr int kWords = 1;
  static __device__ __forceinline__ void widen(const u32* w, float* v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = Codec<E>::load(E{static_cast<u8>(w[0] >> (8 * i))});
  }
  static __device__ __forceinline__ void narrow(const float* v, u32* w) {
    w[0] = u32{saturated_pair(E{}, v[0], v[1])} | u32{saturated_pair(E{}, v[2], v[3])} << 16;
  }
};
template <>
struct Four<e4m3> : FourOf8Bits<e4m3> {};
template <>
struct Four<e5m2> : FourOf8Bits<e5m2> {};

// int8; NaN becomes 0.
template <>
struct Four<signed char> {
  static constexpr int kWords = 1;
  static __device__ __forceinline__ void widen(const u32* w, float* v) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] = static_cast<float>(static_cast<signed char>(w[0] >> (8 * i)));
  }
  static __device__ __forceinline__ void narrow(const float* v, u32* w) {
    w[0] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      i32 whole;
      asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(whole) : "f"(v[i]));
      w[0] |= (static_cast<u32>(whole) & 0xffu) << (8 * i);
    }
  }
};

// One element, at an address that suits its type.
template <class E>
__device__ __forceinline__ float widened(const E* p) {
  u32 w[4] = {};
  if constexpr (sizeof(E) == 4) w[0] = *reinterpret_cast<const u32*>(p);
  if constexpr (sizeof(E) == 2) w[0] = *reinterpret_cast<const unsigned short*>(p);
  if constexpr (sizeof(E) == 1) w[0] = *reinterpret_cast<const u8*>(p);
  float v[4];
  Four<E>::widen(w, v);
  return v[0];
}
template <class E>
__device__ __forceinline__ void narrow_to(E* p, float x) {
  const float v[4] = {x, 0.f, 0.f, 0.f};
  u32 w[4];
  Four<E>::narrow(v, w);
  if constexpr (sizeof(E) == 4) *reinterpret_cast<u32*>(p) = w[0];
  if constexpr (sizeof(E) == 2)
    *reinterpret_cast<unsigned short*>(p) = static_cast<unsigned short>(w[0]);
  if constexpr (sizeof(E) == 1) *reinterpret_cast<u8*>(p) = static_cast<u8>(w[0]);
}

// kWords words of 4 bytes: in as few accesses as an address allows that is aligned for them, in
// pieces at any.
template <int kWords>
__device__ __forceinline__ bool aligned_for(const u8* p) {
  constexpr u64 kUnit = kWords < 4 ? 4 * kWords : 16;
  return reinterpret_cast<u64>(p) % kUnit == 0;
}
template <int kWords>
__device__ __forceinline__ void ld_words(const u8* p, u32 (&w)[kWords]) {
  if constexpr (kWords == 1) {
    w[0] = ld_here(p);
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p) : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 four = ld_here_16(p + 4 * i);
      w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
    }
  }
}
template <int kWords>
__device__ __forceinline__ void gather_words(const u8* p, u32 (&w)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; i += 2) {
    const u64 two = gather_apart(p + 4 * i, kWords > 1 ? 8 : 4);
    w[i] = static_cast<u32>(two);
    if constexpr (kWords > 1) w[i + 1] = static_cast<u32>(two >> 32);
  }
}
template <bool kAligned, int kWords>
__device__ __forceinline__ void load_at(const u8* p, u32 (&w)[kWords]) {
  if constexpr (kAligned) {
    ld_words(p, w);
  } else {
    gather_words(p, w);
  }
}
template <int kWords>
__device__ __forceinline__ void st_words(u8* p, const u32 (&w)[kWords]) {
  if constexpr (kWords == 1) {
    *reinterpret_cast<u32*>(p) = w[0];
  } else if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(p) = {w[0], w[1]};
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      st_stream(p + 4 * i, {u64{w[i + 1]} << 32 | w[i], u64{w[i + 3]} << 32 | w[i + 2]});
  }
}
template <int kWords>
__device__ __forceinline__ void spread_words(u8* p, const u32 (&w)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; i += 2) {
    u64 two = w[i];
    if constexpr (kWords > 1) two |= u64{w[i + 1]} << 32;
    spread_bytes(p + 4 * i, kWords > 1 ? 8 : 4, two);
  }
}

}  // namespace commlib
