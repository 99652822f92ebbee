// Words of 16, 8, 4, 2 or 1 bytes, for rows that are multiples of them.
#pragma once

#include "commlib/types.h"

namespace commlib {

template <int kWidth>
struct WordOf;
template <>
struct WordOf<16> {
  using Type = ulonglong2;
};
template <>
struct WordOf<8> {
  using Type = u64;
};
template <>
struct WordOf<4> {
  using Type = u32;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<1> {
  using Type = u8;
};

// wait_for_stream clobbers memory: no load is moved before it.
template <class Word>
__device__ __forceinline__ Word ld_word(const u8* p) {
  return *reinterpret_cast<const Word*>(p);
}
template <class Word>
__device__ __forceinline__ void st_word(u8* p, Word v) {
  *reinterpret_cast<Word*>(p) = v;
}

// Loads that are issued where they are written.
__device__ __forceinline__ u32 ld_here(const u8* p) {
  u32 v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint4 ld_here_16(const u8* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

}  // namespace commlib
