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

}  // namespace commlib
