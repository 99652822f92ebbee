// What all_reduce_rms_norm does with each row of the sum: the fields and numbers of Rows, and how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "commlib/dtype.h"
#include "commlib/rows.h"

namespace commlib {

// As device/rms_norm.cuh reads them.
enum NormField { kResidual, kWeight, kBias, kScale, kY, kSum, kFoundScale };
enum NormNumber { kEps, kWeightBias };
enum class Quant : uint8_t { none, fp8, fp8_token, fp8_group };
inline const char* name_of(Quant quant) {
  constexpr const char* names[] = {"none", "fp8", "fp8_token", "fp8_group"};
  return names[static_cast<int>(quant)];
}
constexpr int64_t kMostColumns = 1 << 14;  // of a row
constexpr size_t kGroupColumns = 128;      // of fp8_group, that share a scale

struct RowCall {
  Rows rows;
  DType weight;  // of weight and bias
  bool center;
  Quant quant;
  // Memory for `bytes` of sums until the call is on the stream; GPUs alone ask for it.
  std::function<unsigned char*(size_t bytes)> scratch;

  unsigned char* field(NormField which, size_t row) const {
    const Field& field = rows.fields[which];
    return field.data ? field.data + static_cast<int64_t>(row) * field.stride_bytes : nullptr;
  }
  // Bytes that a row of y and of found scales take.
  size_t y_bytes(DType sum) const {
    return rows.width * (quant == Quant::none ? size_of(sum) : size_of(DType::f8e4m3));
  }
  size_t scale_bytes() const {
    const size_t scales = quant == Quant::fp8_token   ? 1
                          : quant == Quant::fp8_group ? rows.width / kGroupColumns
                                                      : 0;
    return scales * sizeof(float);
  }
};

}  // namespace commlib
