// How float16 and bfloat16 are read and rounded. bfloat16 goes two elements to a 32-bit word: both
// halves convert inside their lane. float16 uses the conversion instructions where the level has
// them, and integer arithmetic with the same results where not.
#pragma once

#include "kernels.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace {

struct BFloat16 {
  typedef uint32_t Word __attribute__((aligned(1), may_alias));
  using Acc = float;
  static constexpr int kLanes = 2;
  static constexpr bool kPaired = true;
  static float load_low(uint32_t word) { return float_of(word << 16); }
  static float load_high(uint32_t word) { return float_of(word & 0xffff0000u); }

  // Round to nearest even in the upper half; a NaN keeps its sign and becomes quiet.
  static uint32_t round(float x) {
    const uint32_t u = bits_of(x);
    const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const uint32_t quiet = u | 0x00400000u;
    return (u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
  }
  static uint32_t store(float low, float high) {
    return (round(low) >> 16) | (round(high) & 0xffff0000u);
  }
};

#ifdef __F16C__
struct Float16 {
  typedef long long Word __attribute__((vector_size(16), aligned(1), may_alias));
  typedef float Acc __attribute__((vector_size(32)));
  static constexpr int kLanes = 8;
  static constexpr bool kPaired = false;
  static Acc load(const Word& word) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)&word));
  }
  static Word store(Acc acc) {
    return (Word)_mm256_cvtps_ph((__m256)acc, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};
#else
struct Float16 {
  typedef uint32_t Word __attribute__((aligned(1), may_alias));
  using Acc = float;
  static constexpr int kLanes = 2;
  static constexpr bool kPaired = true;

  // Exact for every half; no fp32 denormal is formed, so flush-to-zero modes do not matter.
  static float widen(uint32_t half) {
    const uint32_t magnitude = half & 0x7fffu;
    const uint32_t normal = (magnitude << 13) + ((127u - 15u) << 23);
    const uint32_t special = (magnitude << 13) | 0x7f800000u;
    // 0.5 + m * 2^-24 minus 0.5 is m * 2^-24: the value of the subnormal half with mantissa m.
    const uint32_t subnormal = bits_of(float_of(magnitude | 0x3f000000u) - 0.5f);
    uint32_t u = magnitude >= 0x7c00u ? special : normal;
    u = magnitude < 0x0400u ? subnormal : u;
    return float_of(u | ((half & 0x8000u) << 16));
  }

  static float load_low(uint32_t word) { return widen(word & 0xffffu); }
  static float load_high(uint32_t word) { return widen(word >> 16); }

  // Round to nearest even; overflow gives infinity, a NaN stays a quiet NaN with its sign.
  static uint32_t narrow(float x) {
    const uint32_t u = bits_of(x);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t odd = (magnitude >> 13) & 1u;
    const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
    // Adding 0.5 aligns the mantissa so that the float unit rounds at 2^-24.
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? (0x7e00u | ((magnitude >> 13) & 0x1ffu)) : half;
    return half | sign;
  }
  static uint32_t store(float low, float high) { return narrow(low) | (narrow(high) << 16); }
};
#endif

}  // namespace
