// How float8_e4m3fn and float8_e5m2 are read and rounded, to nearest even: e4m3, which has no
// infinity, saturates at 448 (as CUDA and torch 2.13 do), e5m2 overflows to infinity.
#pragma once

#include "kernels.h"

namespace {

// Shared by both formats: `kMantissa` bits of mantissa, exponent bias `kBias`.
template <int kMantissa, int kBias>
struct Float8 {
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kMinNormal = uint32_t(127 - kBias + 1) << 23;  // as fp32 bits
  static constexpr uint32_t kAlign = uint32_t(127 - kBias + 1 + kShift) << 23;

  static uint32_t widen_finite(uint32_t magnitude) {
    const uint32_t normal = (magnitude << kShift) + (uint32_t(127 - kBias) << 23);
    const uint32_t unit = uint32_t(127 - kBias + 1 - kMantissa)
                          << 23;  // value of the last mantissa bit
    const uint32_t subnormal =
        bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * float_of(unit));
    return magnitude < (1u << kMantissa) ? subnormal : normal;
  }
  static uint32_t narrow_finite(uint32_t magnitude) {
    const uint32_t odd = (magnitude >> kShift) & 1u;
    const uint32_t normal =
        (magnitude - (uint32_t(127 - kBias) << 23) + ((1u << (kShift - 1)) - 1u) + odd) >> kShift;
    const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kAlign)) - kAlign;
    return magnitude < kMinNormal ? subnormal : normal;
  }
};

struct E4M3 {
  using Word = uint8_t;
  using Acc = float;
  static constexpr int kLanes = 1;
  static constexpr bool kPaired = false;
  using Format = Float8<3, 7>;
  static float load(uint8_t word) {
    const uint32_t magnitude = word & 0x7fu;
    const uint32_t u = magnitude == 0x7fu ? 0x7fc00000u : Format::widen_finite(magnitude);
    return float_of(u | (uint32_t(word & 0x80u) << 24));
  }
  static uint8_t store(float x) {
    const uint32_t u = bits_of(x);
    const uint32_t magnitude = u & 0x7fffffffu;
    uint32_t byte = Format::narrow_finite(magnitude);
    byte = magnitude > 0x43e00000u ? 0x7eu : byte;  // above 448
    byte = magnitude > 0x7f800000u ? 0x7fu : byte;  // NaN
    return static_cast<uint8_t>(byte | ((u >> 24) & 0x80u));
  }
};

struct E5M2 {
  using Word = uint8_t;
  using Acc = float;
  static constexpr int kLanes = 1;
  static constexpr bool kPaired = false;
  using Format = Float8<2, 15>;
  static float load(uint8_t word) {
    const uint32_t magnitude = word & 0x7fu;
    const uint32_t special = (magnitude << Format::kShift) | 0x7f800000u;
    const uint32_t u = magnitude >= 0x7cu ? special : Format::widen_finite(magnitude);
    return float_of(u | (uint32_t(word & 0x80u) << 24));
  }
  static uint8_t store(float x) {
    const uint32_t u = bits_of(x);
    const uint32_t magnitude = u & 0x7fffffffu;
    uint32_t byte = Format::narrow_finite(magnitude);
    byte = magnitude >= 0x47800000u || byte > 0x7cu ? 0x7cu : byte;
    byte = magnitude > 0x7f800000u ? 0x7fu : byte;
    return static_cast<uint8_t>(byte | ((u >> 24) & 0x80u));
  }
};

}  // namespace
