// The epilogue of all_reduce_rms_norm: h = x + residual; y = h * (weight + weight_bias) /
// sqrt(mean(h²) + eps) + bias; y as 8-bit floats with a scale.
//
//   fields   0 residual   1 weight   2 bias   3 scale, as input   4 y   5 h   6 scale, computed
//   numbers  0 eps   1 weight_bias
//
// Residual, bias and scales may be missing. y is of T, or e4m3 with kQuant; h of T; scales are
// float, one for each row or for each 128 columns.
#pragma once

#include "device/row.cuh"

namespace commlib {

constexpr int kPlainNorm = 0, kFp8 = 1, kFp8Token = 2, kFp8Group = 3;

template <int kQuant, class T>
struct NormTo {
  using Type = e4m3;
};
template <class T>
struct NormTo<kPlainNorm, T> {
  using Type = T;
};

// What multiplies y where a scale was computed. A row of zeros stays one, and one with NaN has no
// numbers but zeros and NaN.
__device__ __forceinline__ float inverse(float scale) { return scale > 0.f ? 1.f / scale : 0.f; }

// W: the type of weight and bias. kCenter: the row's mean is subtracted first.
template <class W, bool kCenter, int kQuant>
struct RmsNorm {
  // A row's sum and its maximum are computed together; with a mean before them, registers are few.
  static constexpr bool kAtOnce = kQuant == kFp8Token && !kCenter;

  template <class Block>
  static __device__ __forceinline__ void run(Block& block) {
    using T = typename Block::Element;
    using Row = typename Block::Row;
    const auto residual = block.template input<T>(0);
    const auto weight = block.template input<W>(1);
    const auto bias = block.template late_input<W>(2);
    const auto scale = block.template value<float>(3);
    const auto out = block.template output<typename NormTo<kQuant, T>::Type>(4);
    const auto residual_out = block.template output<T>(5);
    const auto scale_out = block.template output<float>(6);
    const float eps = block.number(0);
    const float weight_bias = block.number(1);
    const float width = block.width();
    const Row x = block.take();
    Row h = has(residual) ? round(x + load(residual)) : x;
    store(residual_out, h);
    if constexpr (kCenter) h = h - sum(h) / width;
    Row y = h;
    SumAndMax all{};
    if constexpr (!kAtOnce) all.sum = sum(h * h);
    y = y * (load(weight) + weight_bias);
    if constexpr (kAtOnce) all = sum_and_max(h * h, abs(y));
    const float factor = 1.f / sqrtf(all.sum / width + eps);
    y = y * factor;
    if (has(bias)) y = y + load(bias);
    if constexpr (kQuant == kFp8) y = y * inverse(scale);
    if constexpr (kQuant == kFp8Token) {
      const float largest =
          kAtOnce && !has(bias) ? all.max * factor : max(abs(y));  // rounded alike
      const float computed = largest / 448.f;
      set(scale_out, computed);
      y = y * inverse(computed);
    }
    if constexpr (kQuant == kFp8Group) {
      const Row computed = max_of_groups<128>(abs(y)) / 448.f;
      set_groups<128>(scale_out, computed);
      y = y * map(computed, [](float each) { return inverse(each); });
    }
    store(out, y);
  }
};

}  // namespace commlib
