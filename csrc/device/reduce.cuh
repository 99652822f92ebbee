// Reduction of a word from each rank, element by element, in rank order.
//
// The same bits as the CPU kernels (csrc/reduce): 16- and 8-bit floats accumulate in fp32 and are
// rounded once, integers wrap, NaN wins in min and max, avg of integers truncates (those of 8 and
// 16 bits accumulate in 32), float8_e4m3fn saturates.
#pragma once

#include "commlib/job.h"

namespace commlib {

struct half {
  unsigned short bits;
};
struct bfloat16 {
  unsigned short bits;
};
struct e4m3 {
  u8 bits;
};
struct e5m2 {
  u8 bits;
};

// How an element in memory becomes an accumulator and back.
template <class T>
struct Codec {
  using Acc = T;
  static __device__ __forceinline__ T load(T x) { return x; }
  static __device__ __forceinline__ T store(T a) { return a; }
};

template <class T>
struct InThirtyTwoBits {
  using Acc = int;
  static __device__ __forceinline__ int load(T x) { return x; }
  static __device__ __forceinline__ T store(int a) { return static_cast<T>(a); }
};
template <>
struct Codec<signed char> : InThirtyTwoBits<signed char> {};
template <>
struct Codec<unsigned char> : InThirtyTwoBits<unsigned char> {};
template <>
struct Codec<short> : InThirtyTwoBits<short> {};
template <>
struct Codec<unsigned short> : InThirtyTwoBits<unsigned short> {};

template <>
struct Codec<half> {
  using Acc = float;
  static __device__ __forceinline__ float load(half x) {
    float a;
    asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(x.bits));
    return a;
  }
  static __device__ __forceinline__ u32 store(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ __forceinline__ half store(float a) {  // the conversion of one is slower
    return {static_cast<unsigned short>(store(a, 0.f))};
  }
};

template <>
struct Codec<bfloat16> {
  using Acc = float;
  static __device__ __forceinline__ float load(bfloat16 x) {
    return __uint_as_float(u32{x.bits} << 16);
  }
  static __device__ __forceinline__ u32 store(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static __device__ __forceinline__ bfloat16 store(float a) {
    return {static_cast<unsigned short>(store(a, 0.f))};
  }
};

// Finite numbers of both 8-bit formats, whose mantissa has M bits and whose exponent is biased by
// B.
template <int M, int B>
struct Float8 {
  static constexpr int kShift = 23 - M;
  static constexpr u32 kMinNormal = u32(127 - B + 1) << 23;  // as fp32 bits
  static constexpr u32 kAlign = u32(127 - B + 1 + kShift) << 23;

  static __device__ __forceinline__ u32 widen(u32 magnitude) {
    if (magnitude >= (1u << M)) return (magnitude << kShift) + (u32(127 - B) << 23);
    const u32 unit = u32(127 - B + 1 - M) << 23;  // of the last mantissa bit
    return __float_as_uint(static_cast<float>(magnitude) * __uint_as_float(unit));
  }
  static __device__ __forceinline__ u32 narrow(u32 magnitude) {
    if (magnitude < kMinNormal)
      return __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(kAlign)) - kAlign;
    const u32 odd = (magnitude >> kShift) & 1u;
    return (magnitude - (u32(127 - B) << 23) + ((1u << (kShift - 1)) - 1u) + odd) >> kShift;
  }
};

template <>
struct Codec<e4m3> {
  using Acc = float;
  using Format = Float8<3, 7>;
  static __device__ __forceinline__ float load(e4m3 x) {
    const u32 magnitude = x.bits & 0x7fu;
    const u32 u = magnitude == 0x7fu ? 0x7fc00000u : Format::widen(magnitude);
    return __uint_as_float(u | (u32(x.bits & 0x80u) << 24));
  }
  static __device__ __forceinline__ e4m3 store(float a) {
    const u32 u = __float_as_uint(a);
    const u32 magnitude = u & 0x7fffffffu;
    u32 byte = Format::narrow(magnitude);
    byte = magnitude > 0x43e00000u ? 0x7eu : byte;  // above 448
    byte = magnitude > 0x7f800000u ? 0x7fu : byte;  // NaN
    return {static_cast<u8>(byte | ((u >> 24) & 0x80u))};
  }
};

template <>
struct Codec<e5m2> {
  using Acc = float;
  using Format = Float8<2, 15>;
  static __device__ __forceinline__ float load(e5m2 x) {
    const u32 magnitude = x.bits & 0x7fu;
    const u32 special = (magnitude << Format::kShift) | 0x7f800000u;
    const u32 u = magnitude >= 0x7cu ? special : Format::widen(magnitude);
    return __uint_as_float(u | (u32(x.bits & 0x80u) << 24));
  }
  static __device__ __forceinline__ e5m2 store(float a) {
    const u32 u = __float_as_uint(a);
    const u32 magnitude = u & 0x7fffffffu;
    u32 byte = Format::narrow(magnitude);
    byte = magnitude >= 0x47800000u || byte > 0x7cu ? 0x7cu : byte;
    byte = magnitude > 0x7f800000u ? 0x7fu : byte;
    return {static_cast<u8>(byte | ((u >> 24) & 0x80u))};
  }
};

// Signed integers are added and multiplied as unsigned ones: wrapping is defined there.
template <class T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<int> {
  using Type = u32;
};
template <>
struct Wrapping<long long> {
  using Type = u64;
};

template <class A>
__device__ __forceinline__ A added(A a, A b) {
  using W = typename Wrapping<A>::Type;
  return static_cast<A>(static_cast<W>(a) + static_cast<W>(b));
}
template <class A>
__device__ __forceinline__ A multiplied(A a, A b) {
  using W = typename Wrapping<A>::Type;
  return static_cast<A>(static_cast<W>(a) * static_cast<W>(b));
}

template <class A>
struct IsFloat {
  static constexpr bool value = false;
};
template <>
struct IsFloat<float> {
  static constexpr bool value = true;
};
template <>
struct IsFloat<double> {
  static constexpr bool value = true;
};

// The sum, known when the kernel is compiled.
struct Sum {
  template <class A>
  static __device__ __forceinline__ A of(A a, A b, int) {
    return added(a, b);
  }
  template <class A>
  static __device__ __forceinline__ A finish(A a, int, int) {
    return a;
  }
};

// Any reduction, by its code (commlib/dtype.h): one kernel for all but the one that must be
// fastest.
struct AnyOp {
  template <class A>
  static __device__ __forceinline__ A of(A a, A b, int redop) {
    switch (redop) {
      case 1:
        return multiplied(a, b);
      case 2:
        return a < b || a != a ? a : b;
      case 3:
        return a > b || a != a ? a : b;
      default:
        break;
    }
    if constexpr (!IsFloat<A>::value) {
      switch (redop) {
        case 5:
          return static_cast<A>(a & b);
        case 6:
          return static_cast<A>(a | b);
        case 7:
          return static_cast<A>(a ^ b);
        default:
          break;
      }
    }
    return added(a, b);
  }
  template <class A>
  static __device__ __forceinline__ A finish(A a, int redop, int n) {
    return redop == 4 ? static_cast<A>(a / static_cast<A>(n)) : a;
  }
};

// Accumulators as the word that they become; two floats of 16 bits are rounded by one instruction.
template <class T, class Acc, int kElements>
__device__ __forceinline__ u64 word_of(const Acc (&a)[kElements]) {
  union {
    u64 bits;
    T element[kElements];
  } word;
#pragma unroll
  for (int e = 0; e < kElements; ++e) word.element[e] = Codec<T>::store(a[e]);
  return word.bits;
}
template <class T>
__device__ __forceinline__ u64 word_of(const float (&a)[4]) {
  return u64{Codec<T>::store(a[2], a[3])} << 32 | Codec<T>::store(a[0], a[1]);
}

// The reduction of w[0], …, w[N - 1].
template <class T, class Op, int N>
__device__ __forceinline__ u64 fold(const u64 (&w)[N], int redop) {
  if constexpr (N == 1) return w[0];
  constexpr int kElements = 8 / sizeof(T);
  union Word {
    u64 bits;
    T element[kElements];
    __device__ Word() {}
  };
  typename Codec<T>::Acc sums[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    Word first;
    first.bits = w[0];
    typename Codec<T>::Acc a = Codec<T>::load(first.element[e]);
#pragma unroll
    for (int r = 1; r < N; ++r) {
      Word next;
      next.bits = w[r];
      a = Op::of(a, Codec<T>::load(next.element[e]), redop);
    }
    sums[e] = Op::finish(a, redop, N);
  }
  return word_of<T>(sums);
}

}  // namespace commlib
