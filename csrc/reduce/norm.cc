// The norm of a row: add the residual | mean and mean square | scale | quantise.
//
// Sums go through kLanes partial sums, element i to sum i % kLanes, which are then added up by
// halves: the order follows from the width alone, and every x86-64 level has the same.
#include "commlib/row_call.h"
#include "float8.h"
#include "widen.h"

namespace {

using commlib::NormCall;
using commlib::NormField;
using commlib::Quant;

constexpr size_t kLanes = 64;
constexpr float kMostE4M3 = 448.f;

// The sum of f(x) over a row. Its width is a multiple of 8.
template <class F>
float sum_of(const float* x, size_t width, F f) {
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += f(x[i + lane]);
  }
  for (size_t lane = 0; i + lane < width; ++lane) sums[lane] += f(x[i + lane]);
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// NaN wins.
float most_of(const float* x, size_t count) {
  uint32_t most = 0;  // magnitudes are in the order of their bits, NaN above all
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  return float_of(most);
}

template <class Visit>
void each_block(size_t width, Visit visit) {
  for (size_t first = 0; first < width; first += kBlockFloats)
    visit(first, width - first < kBlockFloats ? width - first : kBlockFloats);
}

// h = sum + residual, rounded, to its field and as floats.
template <class T>
void add_residual(const NormCall& call, size_t row, const void* sum, size_t bytes, float* h) {
  const auto* from = static_cast<const unsigned char*>(sum);
  const unsigned char* residual = call.field(NormField::kResidual, row);
  unsigned char* to = call.field(NormField::kSum, row);
  each_block(call.rows.width, [&](size_t first, size_t count) {
    T::widen(h + first, from + first * bytes, count);
    if (residual) {
      float more[kBlockFloats];
      T::widen(more, residual + first * bytes, count);
      float* at = h + first;
      for (size_t i = 0; i < count; ++i) at[i] += more[i];
    }
    T::round(to + first * bytes, h + first, count);
    if (residual) T::widen(h + first, to + first * bytes, count);
  });
}

// In place: y, of h.
template <class W>
void normalise(const NormCall& call, size_t bytes, float* h) {
  const size_t width = call.rows.width;
  const float all = static_cast<float>(width),
              weight_bias = call.rows.numbers[commlib::kWeightBias];
  if (call.center) {
    const float mean = sum_of(h, width, [](float x) { return x; }) / all;
    for (size_t i = 0; i < width; ++i) h[i] -= mean;
  }
  const float mean_square = sum_of(h, width, [](float x) { return x * x; }) / all;
  const float factor = 1.f / __builtin_sqrtf(mean_square + call.rows.numbers[commlib::kEps]);
  const unsigned char* weight = call.field(NormField::kWeight, 0);
  const unsigned char* bias = call.field(NormField::kBias, 0);
  each_block(width, [&](size_t first, size_t count) {
    float of_columns[kBlockFloats];
    W::widen(of_columns, weight + first * bytes, count);
    float* y = h + first;
    for (size_t i = 0; i < count; ++i) y[i] = y[i] * factor * (of_columns[i] + weight_bias);
    if (!bias) return;
    W::widen(of_columns, bias + first * bytes, count);
    for (size_t i = 0; i < count; ++i) y[i] += of_columns[i];
  });
}

float inverse(float scale) { return scale > 0.f ? 1.f / scale : 0.f; }

void quantise(const float* y, size_t count, float scale, unsigned char* to) {
  const float factor = inverse(scale);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = E4M3::store(y[i] * factor);
}

float found_scale(const float* y, size_t count, unsigned char* to) {
  const float scale = most_of(y, count) / kMostE4M3;
  memcpy(to, &scale, sizeof(scale));
  return scale;
}

void store_narrow(const NormCall& call, size_t row, const float* y) {
  const size_t width = call.rows.width;
  unsigned char* to = call.field(NormField::kY, row);
  if (call.quant == Quant::fp8) {
    float scale;
    memcpy(&scale, call.field(NormField::kScale, row), sizeof(scale));
    return quantise(y, width, scale, to);
  }
  unsigned char* scales = call.field(NormField::kFoundScale, row);
  const size_t group = call.quant == Quant::fp8_token ? width : commlib::kGroupColumns;
  for (size_t at = 0; at < width; at += group, scales += sizeof(float))
    quantise(y + at, group, found_scale(y + at, group, scales), to + at);
}

template <class T, class W>
void norm_row(const NormCall& call, size_t row, const void* sum, float* wide, size_t bytes,
              size_t weight_bytes) {
  add_residual<T>(call, row, sum, bytes, wide);
  normalise<W>(call, weight_bytes, wide);
  if (call.quant != Quant::none) return store_narrow(call, row, wide);
  unsigned char* to = call.field(NormField::kY, row);
  each_block(call.rows.width, [&](size_t first, size_t count) {
    T::round(to + first * bytes, wide + first, count);
  });
}

void norm_floats(const NormCall& call, size_t row, const void* sum, float* wide) {
  norm_row<BlocksOfFloat, BlocksOfFloat>(call, row, sum, wide, 4, 4);
}
template <class T>
void norm_halves(const NormCall& call, size_t row, const void* sum, float* wide) {
  if (call.weight == DType::f32) return norm_row<T, BlocksOfFloat>(call, row, sum, wide, 2, 4);
  norm_row<T, T>(call, row, sum, wide, 2, 2);
}

}  // namespace

void COMMLIB_LEVEL(fill_norm)(ReduceTable* table) {
  table->norm[static_cast<int>(DType::f32)] = norm_floats;
  table->norm[static_cast<int>(DType::f16)] = norm_halves<BlocksOfFloat16>;
  table->norm[static_cast<int>(DType::bf16)] = norm_halves<BlocksOfBFloat16>;
}
