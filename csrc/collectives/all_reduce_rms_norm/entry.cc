// all_reduce_rms_norm for Python: y is in `out`, the sum with the residual in `residual_out`.
#include "binding/calls.h"
#include "commlib/row_call.h"

namespace commlib::binding {
namespace {

constexpr int64_t kColumns = 8;  // rows are multiples of so many

std::string shape_of(const Tensor& tensor) {
  std::string text = "(";
  for (int d = 0; d < tensor.ndim(); ++d) text += (d ? ", " : "") + std::to_string(tensor.size(d));
  return text + ")";
}

// Rows of the last dimension, the same distance apart.
struct RowsOf {
  const char* name;
  unsigned char* data;
  DType dtype;
  int64_t rows, width, stride_bytes = 0;

  RowsOf(const Target& target, const Tensor& tensor, const char* argument)
      : name(argument), data(tensor.data()), dtype(dtype_of(tensor.type(), argument)) {
    if (!target.owns(tensor.device())) target.refuse(tensor.device(), name);
    if (tensor.ndim() == 0) fail("ValueError", name, " has no dimension, but must have rows");
    width = tensor.size(-1);
    rows = width > 0 ? tensor.numel() / width : 0;
    if (rows > 0 && !are_apart_alike(tensor))
      fail("ValueError", name,
           " has rows that are not contiguous, or not the same distance apart; ", "pass ", name,
           ".contiguous()");
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
    return data == other.data && dtype == other.dtype &&
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

void same_shape(const Tensor& tensor, const RowsOf& rows, const Tensor& x, DType dtype) {
  bool same = tensor.ndim() == x.ndim();
  for (int d = 0; same && d < x.ndim(); ++d) same = tensor.size(d) == x.size(d);
  if (!same)
    fail("ValueError", rows.name, " has shape ", shape_of(tensor), ", but x has ", shape_of(x));
  if (rows.dtype != dtype)
    fail("ValueError", rows.name, " is ", name_of(rows.dtype), ", but must be ", name_of(dtype));
}

RowsOf of_columns(const Target& target, const Tensor& tensor, const char* name, const RowsOf& x) {
  const RowsOf found(target, tensor, name);
  if (tensor.numel() != x.width || tensor.ndim() != 1)
    fail("ValueError", name, " has shape ", shape_of(tensor), ", but x has rows of ", x.width);
  if (found.dtype != x.dtype && found.dtype != DType::f32)
    fail("ValueError", name, " is ", name_of(found.dtype), ", but must be ", name_of(x.dtype),
         x.dtype == DType::f32 ? "" : ", as x, or float32");
  return found;
}

void of_norms(const RowsOf& x) {
  if (x.dtype != DType::f32 && x.dtype != DType::f16 && x.dtype != DType::bf16)
    fail("ValueError", "x is ", name_of(x.dtype), ", but must be float32, float16 or bfloat16");
  if (x.width % kColumns != 0 || x.width > kMostColumns)
    fail("ValueError", "x has rows of ", x.width, ", but must have a multiple of ", kColumns,
         " up to ", kMostColumns);
}

Quant quant_named(const std::optional<std::string>& name, const RowsOf& x) {
  if (!name) return Quant::none;
  if (*name == "fp8") return Quant::fp8;
  if (*name == "fp8_token") return Quant::fp8_token;
  if (*name != "fp8_group")
    fail("ValueError", "quant is '", *name,
         "', but must be None, 'fp8', 'fp8_token' or 'fp8_group'");
  if (x.width % kGroupColumns != 0)
    fail("ValueError", "x has rows of ", x.width, ", but quant='fp8_group' needs a multiple of ",
         kGroupColumns);
  return Quant::fp8_group;
}

// Scales are float32: one that is given, or those of each row, one behind the other.
Field scale_field(const Target& target, const Tensor& tensor, const char* name, int64_t count,
                  int64_t of_row) {
  const Buffer scales(target, tensor, name);
  if (scales.dtype != DType::f32)
    fail("ValueError", name, " is ", name_of(scales.dtype), ", but must be float32");
  if (tensor.numel() != count)
    fail("ValueError", name, " has ", tensor.numel(), " elements, but needs ", count);
  return {scales.data, of_row};
}

// What is written must not be what is read, but for what it replaces.
void replaces(const RowsOf& output, const RowsOf* replaced,
              const std::vector<const RowsOf*>& others) {
  for (const RowsOf* other : others) {
    const bool may_replace = other == replaced && output.same(*other);
    if (!may_replace && !output.apart(*other))
      fail("ValueError", output.name, " and ", other->name, " share memory; pass ",
           other == replaced ? "the same tensor or " : "", "separate tensors");
  }
}

// What is given besides x and where its results go; null: not given.
struct Given {
  const std::optional<Tensor>&residual, &bias, &scale, &scale_out;
  const Tensor &weight, &out, &residual_out;
};

// Fills in the fields, each checked.
void check_fields(const Target& target, const Tensor& x_given, const RowsOf& x, const Given& given,
                  RowCall& row) {
  const RowsOf weight = of_columns(target, given.weight, "weight", x);
  const RowsOf out(target, given.out, "out"), sum(target, given.residual_out, "residual_out");
  std::optional<RowsOf> residual, bias;
  std::vector<const RowsOf*> read = {&x, &weight};
  if (given.residual) {
    read.push_back(&residual.emplace(target, *given.residual, "residual"));
    same_shape(*given.residual, *residual, x_given, x.dtype);
    row.rows.fields[kResidual] = residual->field();
  }
  same_shape(given.out, out, x_given, row.quant == Quant::none ? x.dtype : DType::f8e4m3);
  same_shape(given.residual_out, sum, x_given, x.dtype);
  if (given.bias) {
    read.push_back(&bias.emplace(of_columns(target, *given.bias, "bias", x)));
    if (bias->dtype != weight.dtype)
      fail("ValueError", "bias is ", name_of(bias->dtype), ", but weight is ",
           name_of(weight.dtype));
    row.rows.fields[kBias] = {bias->data, 0};
  }
  if (x.rows > 0) {
    replaces(out, &x, read);
    read.push_back(&out);
    replaces(sum, residual ? &*residual : nullptr, read);
  }
  row.weight = weight.dtype;
  row.rows.fields[kWeight] = {weight.data, 0};
  row.rows.fields[kY] = out.field();
  row.rows.fields[kSum] = sum.field();
  const auto of_row = static_cast<int64_t>(row.scale_bytes());
  if ((row.quant == Quant::fp8) != given.scale.has_value())
    fail("ValueError", "scale is ", given.scale ? "" : "not ", "given, but ",
         given.scale ? "only quant='fp8' takes one" : "quant='fp8' needs one");
  if (given.scale) row.rows.fields[kScale] = scale_field(target, *given.scale, "scale", 1, 0);
  if (given.scale_out)
    row.rows.fields[kFoundScale] =
        scale_field(target, *given.scale_out, "scale_out", x.rows * of_row / 4, of_row);
}

void all_reduce_rms_norm(Target& target, const Tensor& x_given,
                         const std::optional<Tensor>& residual, const Tensor& weight,
                         const std::optional<Tensor>& bias, const std::optional<Tensor>& scale,
                         const Tensor& out, const Tensor& residual_out,
                         const std::optional<Tensor>& scale_out, double eps, double weight_bias,
                         bool center, const std::optional<std::string>& quant) {
  const RowsOf x(target, x_given, "x");
  of_norms(x);
  RowCall row{};
  row.quant = quant_named(quant, x);
  row.center = center;
  row.rows.rows = static_cast<u64>(x.rows);
  row.rows.width = static_cast<u32>(x.width);
  row.rows.in_stride_bytes = x.stride_bytes;
  row.rows.numbers[kEps] = static_cast<float>(eps);
  row.rows.numbers[kWeightBias] = static_cast<float>(weight_bias);
  check_fields(target, x_given, x, {residual, bias, scale, scale_out, weight, out, residual_out},
               row);
  Words words;
  row.scratch = [&](size_t bytes) {
    words = words_on(x_given.device(), static_cast<int64_t>((bytes + 3) / 4));
    return static_cast<unsigned char*>(words->tensor.data);
  };
  target.open();
  Call call{Op::all_reduce_rms_norm, x.dtype};
  call.in = x.data;
  call.count = static_cast<size_t>(x.rows * x.width);
  call.detail = row.rows.width;
  call.rows = &row;
  target.run(call, call.bytes(), {});
}

COMMLIB_CALL(all_reduce_rms_norm,
             "x, residual, weight, bias, scale, out, residual_out, scale_out, eps, weight_bias, "
             "center, quant");

}  // namespace
}  // namespace commlib::binding
