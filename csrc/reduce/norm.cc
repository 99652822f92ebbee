// The norm of a row, in two passes: add up the sources and the residual, with the sum of squares |
// scale, and quantise.
//
// Sums go through kLanes partial sums, element i to sum i % kLanes, which are then added up by
// halves: the order follows only from the width, and every x86-64 level has the same.
#include "commlib/row_call.h"
#include "float8.h"
#include "widen.h"

namespace {

using commlib::NormCall;
using commlib::NormField;
using commlib::Quant;
using commlib::RowNorm;

constexpr size_t kLanes = 64;
constexpr size_t kSums = kLanes / kFloats;
constexpr float kMaxE4M3 = 448.f;

// Calls visit(first element, which of the sums, count) for each vector of a row. Its width is a
// multiple of 8, so only the last vector may have a count below kFloats.
template <class Visit>
inline void each_vector(size_t width, Visit visit) {
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
#pragma GCC unroll 16
    for (size_t k = 0; k < kSums; ++k) visit(i + k * kFloats, k, kFloats);
  }
#pragma GCC unroll 16
  for (size_t k = 0; k < kSums; ++k, i += kFloats) {
    if (i < width) visit(i, k, width - i < kFloats ? width - i : kFloats);
  }
}

// Partial sums in registers.
struct Sums {
  Floats of[kSums] = {};

  float all() const {
    float lanes[kLanes];
    memcpy(lanes, of, sizeof(lanes));
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }
};

#define COMMLIB_INLINE __attribute__((always_inline))

// The sum over all ranks, rounded, as a reduction in the order of the sources has it.
template <class T, int kSources>
inline Floats sum_of(const void* const* sources, int num_sources, size_t i, size_t count) {
  const int number = kSources > 0 ? kSources : num_sources;
  const auto at = [&](int r) {
    return read_wide<T>(static_cast<const unsigned char*>(sources[r]), i, count);
  };
  Floats sum = at(0);
  for (int r = 1; r < number; ++r) sum += at(r);
  typename T::Narrow unused;
  return number == 1 ? sum : T::round(sum, unused);
}

template <class T, int kSources, bool kCenter>
RowNorm add(const NormCall& call, size_t row, const void* const* sources, int num_sources,
            unsigned char* h) {
  const size_t width = call.rows.width;
  const float all = static_cast<float>(width);
  const unsigned char* residual = call.field(NormField::kResidual, row);
  Sums plain, squares;
  each_vector(width, [&](size_t i, size_t k, size_t count) COMMLIB_INLINE {
    Floats x = sum_of<T, kSources>(sources, num_sources, i, count);
    if (residual) x += read_wide<T>(residual, i, count);
    typename T::Narrow narrow;
    x = T::round(x, narrow);
    write(h + i * bytes_of<T>(), narrow, count);
    if (kCenter) {
      plain.of[k] += x;
    } else {
      squares.of[k] += x * x;
    }
  });
  float mean = 0.f;
  if (kCenter) {
    mean = plain.all() / all;
    each_vector(width, [&](size_t i, size_t k, size_t count) COMMLIB_INLINE {
      const Floats x = read_wide<T>(h, i, count) - mean;
      const Floats loaded = count == kFloats ? x : read<Floats>(&x, count);
      squares.of[k] += loaded * loaded;
    });
  }
  const float mean_square = squares.all() / all;
  return {mean, 1.f / __builtin_sqrtf(mean_square + call.rows.numbers[commlib::kEps])};
}

template <class T>
RowNorm add_sources(const NormCall& call, size_t row, const void* const* sources, int num_sources,
                    unsigned char* h) {
  if (call.center) return add<T, 0, true>(call, row, sources, num_sources, h);
  if (num_sources == 1) return add<T, 1, false>(call, row, sources, 1, h);
  if (num_sources == 2) return add<T, 2, false>(call, row, sources, 2, h);
  return add<T, 0, false>(call, row, sources, num_sources, h);
}

// NaN wins.
float largest_of(const float* x, size_t count) {
  uint32_t largest = 0;  // magnitudes are in the order of their bits, NaN above all
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return float_of(largest);
}

float inverse(float scale) { return scale > 0.f ? 1.f / scale : 0.f; }

void quantise(const float* y, size_t count, float scale, unsigned char* to) {
  const float factor = inverse(scale);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = E4M3::store(y[i] * factor);
}

float write_scale(const float* y, size_t count, unsigned char* to) {
  const float scale = largest_of(y, count) / kMaxE4M3;
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
  unsigned char* scales = call.field(NormField::kComputedScale, row);
  const size_t group = call.quant == Quant::fp8_token ? width : commlib::kGroupColumns;
  for (size_t at = 0; at < width; at += group, scales += sizeof(float))
    quantise(y + at, group, write_scale(y + at, group, scales), to + at);
}

// Calls store(first element, y, count) for each vector of the norm of h, whose weight is of type W;
// copies h to its field.
template <class T, class W, class Store>
inline void normalise(const NormCall& call, size_t row, const unsigned char* h, RowNorm norm,
                      Store store) {
  const float weight_bias = call.rows.numbers[commlib::kWeightBias];
  const unsigned char* weight = call.field(NormField::kWeight, 0);
  const unsigned char* bias = call.field(NormField::kBias, 0);
  unsigned char* sum = call.field(NormField::kSum, row);
  each_vector(call.rows.width, [&](size_t i, size_t, size_t count) COMMLIB_INLINE {
    const Floats factors = read_wide<W>(weight, i, count) + weight_bias;
    const auto x = read<typename T::Narrow>(h + i * bytes_of<T>(), count);
    if (sum != h) write(sum + i * bytes_of<T>(), x, count);
    Floats y = (T::widen(x) - norm.mean) * norm.factor * factors;
    if (bias) y += read_wide<W>(bias, i, count);
    store(i, y, count);
  });
}

template <class T, class W>
void norm_row(const NormCall& call, size_t row, const unsigned char* h, RowNorm norm, float* wide) {
  if (call.quant == Quant::none) {
    unsigned char* to = call.field(NormField::kY, row);
    normalise<T, W>(call, row, h, norm,
                    [&](size_t i, const Floats& y, size_t count) COMMLIB_INLINE {
                      typename T::Narrow narrow;
                      T::round(y, narrow);
                      write(to + i * bytes_of<T>(), narrow, count);
                    });
    return;
  }
  auto* to = reinterpret_cast<unsigned char*>(wide);
  normalise<T, W>(call, row, h, norm, [&](size_t i, const Floats& y, size_t count) COMMLIB_INLINE {
    write(to + i * sizeof(float), y, count);
  });
  store_narrow(call, row, wide);
}

template <class T>
void norm_halves(const NormCall& call, size_t row, const unsigned char* h, RowNorm norm,
                 float* wide) {
  if (call.weight == DType::f32) return norm_row<T, OfFloat>(call, row, h, norm, wide);
  norm_row<T, T>(call, row, h, norm, wide);
}

template <class T>
void fill(ReduceTable* table, DType dtype, commlib::NormFn norm) {
  table->add[static_cast<int>(dtype)] = add_sources<T>;
  table->norm[static_cast<int>(dtype)] = norm;
}

}  // namespace

void COMMLIB_LEVEL(fill_norm)(ReduceTable* table) {
  fill<OfFloat>(table, DType::f32, norm_row<OfFloat, OfFloat>);
  fill<OfFloat16>(table, DType::f16, norm_halves<OfFloat16>);
  fill<OfBFloat16>(table, DType::bf16, norm_halves<OfBFloat16>);
}
