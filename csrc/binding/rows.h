// Tensors as rows of their last dimension: what a call that does something with each row checks.
#pragma once

#include <string>

#include "binding/arguments.h"
#include "commlib/row_call.h"

namespace commlib::binding {

inline std::string shape_of(const Tensor& tensor) {
  std::string text = "(";
  for (int d = 0; d < tensor.ndim(); ++d) text += (d ? ", " : "") + std::to_string(tensor.size(d));
  return text + ")";
}

// Rows of the last dimension, the same distance apart; a tensor without one is a row of one.
struct RowsOf {
  const char* name;
  unsigned char* data;
  DType dtype;
  int64_t rows, width, stride_bytes = 0;

  RowsOf(const Target& target, const Tensor& tensor, const char* argument)
      : name(argument),
        data(tensor.data()),
        dtype(dtype_of(tensor.type(), argument)),
        width(tensor.ndim() > 0 ? tensor.size(-1) : 1) {
    if (!target.owns(tensor.device())) target.refuse(tensor.device(), name);
    rows = width > 0 ? tensor.numel() / width : 0;
    if (rows > 0 && !are_apart_alike(tensor))
      fail("ValueError", name,
           " has rows that are not contiguous, or not the same distance apart; first ", name, " = ",
           name, ".contiguous()");
  }
  int64_t row_bytes() const { return width * static_cast<int64_t>(size_of(dtype)); }
  Field field() const { return {data, stride_bytes}; }

  // Whether no byte is of both.
  bool apart(const RowsOf& other) const {
    const auto span = [](const RowsOf& of) {
      return (of.rows - 1) * of.stride_bytes + of.row_bytes();
    };
    if (data + span(*this) <= other.data || other.data + span(other) <= data) return true;
    if (stride_bytes != other.stride_bytes || stride_bytes == 0) return false;
    const int64_t ahead = ((other.data - data) % stride_bytes + stride_bytes) % stride_bytes;
    return ahead >= row_bytes() && ahead + other.row_bytes() <= stride_bytes;
  }
  bool same(const RowsOf& other) const {
    return data == other.data && dtype == other.dtype && width == other.width &&
           (stride_bytes == other.stride_bytes || rows == 1);
  }

 private:
  bool are_apart_alike(const Tensor& tensor) {
    const int64_t item = tensor.item_bytes();
    if (width > 1 && tensor.stride(-1) != 1) return false;
    stride_bytes = width * item;
    int64_t inside = 1;  // rows of the dimensions behind
    bool known = false;
    for (int d = tensor.ndim() - 2; d >= 0; --d) {
      if (tensor.size(d) == 1) continue;
      const int64_t stride = tensor.stride(d) * item;
      if (!known) stride_bytes = stride;
      if (known && stride != stride_bytes * inside) return false;
      known = true;
      inside *= tensor.size(d);
    }
    return stride_bytes >= width * item;
  }
};

// What kernels of rows take: x, whose rows are summed.
inline void expect_summable(const Tensor& tensor, const RowsOf& x) {
  constexpr int64_t kColumns = 8;
  if (tensor.ndim() == 0) fail("ValueError", "x has no dimension, but must have rows");
  if (x.dtype != DType::f32 && x.dtype != DType::f16 && x.dtype != DType::bf16)
    fail("ValueError", "x is ", name_of(x.dtype), ", but must be float32, float16 or bfloat16");
  if (x.width % kColumns != 0 || x.width > kMaxColumns)
    fail("ValueError", "x has rows of ", x.width, ", but must have a multiple of ", kColumns,
         " up to ", kMaxColumns);
}

inline bool is_shaped(const Tensor& tensor, const Tensor& x, int64_t width) {
  bool same = tensor.ndim() == x.ndim() && tensor.size(-1) == width;
  for (int d = 0; same && d < x.ndim() - 1; ++d) same = tensor.size(d) == x.size(d);
  return same;
}
inline void expect_shape_of_x(const Tensor& tensor, const RowsOf& rows, const Tensor& x) {
  if (!is_shaped(tensor, x, x.size(-1)))
    fail("ValueError", rows.name, " has shape ", shape_of(tensor), ", but x has ", shape_of(x));
}
inline void expect_dtype(const RowsOf& rows, DType dtype) {
  if (rows.dtype != dtype)
    fail("ValueError", rows.name, " is ", name_of(rows.dtype), ", but must be ", name_of(dtype));
}
inline void expect_columns(const Tensor& tensor, const RowsOf& columns, const RowsOf& x) {
  if (tensor.numel() != x.width || tensor.ndim() != 1)
    fail("ValueError", columns.name, " has shape ", shape_of(tensor), ", but x has rows of ",
         x.width);
}

// What is written must not be what is read, unless it takes its place.
inline void expect_apart(const RowsOf& output, const RowsOf& other, bool may_replace) {
  if ((may_replace && output.same(other)) || output.apart(other)) return;
  fail("ValueError", output.name, " and ", other.name, " share memory; pass ",
       may_replace ? "the same tensor or " : "", "separate tensors");
}

inline Rows rows_of(const RowsOf& x) {
  Rows rows{};
  rows.rows = static_cast<u64>(x.rows);
  rows.width = static_cast<u32>(x.width);
  rows.in_stride_bytes = x.stride_bytes;
  rows.aligned = true;
  return rows;
}

// Runs the call that ends with `row`. `sums`: what is done with rows is Python's, and x, whole,
// lies where their sums go.
inline void run_rows(Target& target, const Tensor& tensor, const RowsOf& x, RowCall& row,
                     uint64_t detail, const Tensor* sums = nullptr) {
  Words words;
  row.scratch = [&](size_t bytes) {
    words = words_on(tensor.device(), static_cast<int64_t>((bytes + 3) / 4));
    return static_cast<unsigned char*>(words->tensor.data);
  };
  target.open();
  Call call{sums ? Op::all_reduce : row.op, x.dtype};
  call.in = sums ? sums->data() : x.data;
  call.out = sums ? sums->data() : nullptr;
  call.count = static_cast<size_t>(x.rows * x.width);
  call.detail = detail;
  call.rows = &row;
  target.run(call, call.bytes(), {});
}

}  // namespace commlib::binding
