// Elements as vectors of floats, and floats as elements: rounded to nearest even. Elements may
// start anywhere.
#pragma once

#include "halves.h"

namespace {

// As wide as the registers of the level.
#if defined(__AVX512F__)
constexpr size_t kFloats = 16;
#elif defined(__AVX2__)
constexpr size_t kFloats = 8;
#else
constexpr size_t kFloats = 4;
#endif
typedef float Floats __attribute__((vector_size(kFloats * 4)));
typedef uint32_t Bits __attribute__((vector_size(kFloats * 4)));
typedef uint16_t Halves __attribute__((vector_size(kFloats * 2)));

// The first `count` elements of a vector, zeros behind them; all of them without a count.
template <class Vector, class Byte>
inline Vector read(const Byte* from, size_t count = kFloats) {
  constexpr size_t element = sizeof(Vector) / kFloats;
  Vector vector{};
  if (count == kFloats) {
    memcpy(&vector, from, sizeof(vector));
  } else {
    memcpy(&vector, from, count * element);
  }
  return vector;
}
template <class Vector>
inline void write(unsigned char* to, const Vector& from, size_t count = kFloats) {
  constexpr size_t element = sizeof(Vector) / kFloats;
  if (count == kFloats) {
    memcpy(to, &from, sizeof(from));
  } else {
    memcpy(to, &from, count * element);
  }
}

// 16-bit words to 32 bits, and words below 2^16 back. Where a function has no name for "of all
// elements", the mask has all.
#if defined(__AVX512F__)
inline Bits widen_words(const Halves& x) {
  return (Bits)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)x);
}
inline Halves narrow_words(const Bits& x) {
  return (Halves)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)x);
}
#elif defined(__AVX2__)
inline Bits widen_words(const Halves& x) { return (Bits)_mm256_cvtepu16_epi32((__m128i)x); }
inline Halves narrow_words(const Bits& x) {
  const __m256i in_quarters = _mm256_packus_epi32((__m256i)x, (__m256i)x);
  return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(in_quarters, 0x08));
}
#else
inline Bits widen_words(const Halves& x) { return __builtin_convertvector(x, Bits); }
inline Halves narrow_words(const Bits& x) { return __builtin_convertvector(x, Halves); }
#endif

// Each element type has vectors of its own. `round` gives the nearest elements, and returns them as
// floats.
struct OfFloat {
  using Narrow = Floats;
  static Floats widen(const Narrow& x) { return x; }
  static Floats round(const Floats& x, Narrow& to) { return to = x; }
};

struct OfBFloat16 {
  using Narrow = Halves;
  static Floats widen(const Narrow& x) { return (Floats)(widen_words(x) << 16); }
  // As BFloat16::round.
  static Floats round(const Floats& x, Narrow& to) {
    const Bits bits = (Bits)x;
    const Bits nearest = bits + 0x7fff + ((bits >> 16) & 1);
    const Bits quiet = bits | 0x00400000;
    const Bits rounded = (x == x ? nearest : quiet) & 0xffff0000;
    to = narrow_words(rounded >> 16);
    return (Floats)rounded;
  }
};

struct OfFloat16 {
  using Narrow = Halves;
  static Floats round(const Floats& x, Narrow& to) {
    to = narrow(x);
    return widen(to);
  }
#if defined(__AVX512F__)
  static Floats widen(const Narrow& x) { return (Floats)_mm512_maskz_cvtph_ps(0xffff, (__m256i)x); }
  static Narrow narrow(const Floats& x) {
    return (Narrow)_mm512_maskz_cvtps_ph(0xffff, (__m512)x,
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#elif defined(__F16C__)
  static Floats widen(const Narrow& x) { return (Floats)_mm256_cvtph_ps((__m128i)x); }
  static Narrow narrow(const Floats& x) {
    return (Narrow)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#else
  // As Float16::widen and Float16::narrow without the instructions.
  static Floats widen(const Narrow& x) {
    const Bits half = widen_words(x), magnitude = half & 0x7fff;
    const Bits normal = (magnitude << 13) + ((127 - 15) << 23);
    const Bits special = (magnitude << 13) | 0x7f800000;
    const Bits subnormal = (Bits)((Floats)(magnitude | 0x3f000000) - 0.5f);
    const Bits large = magnitude >= 0x7c00 ? special : normal;
    return (Floats)((magnitude < 0x0400 ? subnormal : large) | ((half & 0x8000) << 16));
  }
  static Narrow narrow(const Floats& x) {
    const Bits bits = (Bits)x, magnitude = bits & 0x7fffffff, odd = (magnitude >> 13) & 1;
    const Bits normal = (magnitude - ((127 - 15) << 23) + 0xfff + odd) >> 13;
    const Bits subnormal = (Bits)((Floats)magnitude + 0.5f) - 0x3f000000;
    const Bits quiet = ((magnitude >> 13) & 0x1ff) | 0x7e00;
    Bits half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? (half & 0) | 0x7c00 : half;
    half = magnitude > 0x7f800000 ? quiet : half;
    return narrow_words(half | ((bits >> 16) & 0x8000));
  }
#endif
};

template <class T>
constexpr size_t bytes_of() {
  return sizeof(typename T::Narrow) / kFloats;
}
// `count` elements from element i on, as floats.
template <class T>
inline Floats read_wide(const unsigned char* row, size_t i, size_t count = kFloats) {
  return T::widen(read<typename T::Narrow>(row + i * bytes_of<T>(), count));
}

}  // namespace
