// What a call does with each row of the sum: the fields and numbers of Rows, and the epilogue that
// knows what they mean.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "commlib/call.h"
#include "commlib/check.h"
#include "commlib/rows.h"

namespace commlib {

constexpr int64_t kMaxColumns = 1 << 14;  // of a row
constexpr size_t kGroupColumns = 128;     // that share a number

// An epilogue for its compiler: which it is, in words, and the text of one that is the user's.
struct EpilogueText {
  std::string words;
  std::string source;
};

struct RowCall {
  Op op;  // of which this is the end
  Rows rows;
  // Kernels are compiled for an epilogue, and for the element types of its fields: a byte each.
  uint64_t epilogue;
  uint64_t types;
  std::function<EpilogueText()> describe;  // of both; asked for what was not compiled yet
  // Whole rows of the type of x, one behind the other, that the epilogue writes and does not read:
  // the sums may lie there meanwhile. Null: there are none.
  unsigned char* room;
  // Memory for `bytes` of sums until the call is on the stream; GPUs alone ask for it.
  std::function<unsigned char*(size_t bytes)> scratch;

  // A field with an element for each one of x, which has `x_element` bytes.
  void set_elements(int which, const Field& field, size_t element, size_t x_element) {
    const u64 of_thread = std::min<u64>(16, 16 / x_element * element);
    const u64 place = reinterpret_cast<u64>(field.data) | static_cast<u64>(field.stride_bytes);
    rows.fields[which] = field;
    rows.aligned = rows.aligned && place % of_thread == 0;
  }
  unsigned char* field(int which, size_t row) const {
    const Field& field = rows.fields[which];
    return field.data ? field.data + static_cast<int64_t>(row) * field.stride_bytes : nullptr;
  }
};

// As device/rms_norm.cuh reads them.
enum NormField { kResidual, kWeight, kBias, kScale, kY, kSum, kComputedScale };
enum NormNumber { kEps, kWeightBias };
enum class Quant : uint8_t { none, fp8, fp8_token, fp8_group };
inline const char* name_of(Quant quant) {
  constexpr const char* names[] = {"none", "fp8", "fp8_token", "fp8_group"};
  return names[static_cast<int>(quant)];
}

// all_reduce_rms_norm.
struct NormCall : RowCall {
  DType weight;  // of weight and bias
  bool center;
  Quant quant;

  // In four bits: what ranks compare besides the rows.
  unsigned form() const {
    return static_cast<unsigned>(quant) | unsigned{center} << 2 |
           unsigned{weight == DType::f32} << 3;
  }
  static std::string describe_form(unsigned form) {
    return text("quant ", name_of(static_cast<Quant>(form & 3)),
                form >> 2 & 1 ? ", center=True" : "",
                form >> 3 & 1 ? ", weight float32" : ", weight as x");
  }

  // Bytes that the computed scales of a row take.
  size_t scale_bytes() const {
    const size_t scales = quant == Quant::fp8_token   ? 1
                          : quant == Quant::fp8_group ? rows.width / kGroupColumns
                                                      : 0;
    return scales * sizeof(float);
  }
};

}  // namespace commlib
