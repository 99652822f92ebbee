// all_reduce_rms_norm for Python: y is in `out`, the sum with the residual in `residual_out`.
#include "binding/calls.h"
#include "binding/rows.h"

namespace commlib::binding {
namespace {

RowsOf of_columns(const Target& target, const Tensor& tensor, const char* name, const RowsOf& x) {
  const RowsOf columns(target, tensor, name);
  expect_columns(tensor, columns, x);
  if (columns.dtype != x.dtype && columns.dtype != DType::f32)
    fail("ValueError", name, " is ", name_of(columns.dtype), ", but must be ", name_of(x.dtype),
         x.dtype == DType::f32 ? "" : ", as x, or float32");
  return columns;
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

// Scales are float32: one for all, or those of each row, one behind the other.
Field scale_field(const Target& target, const Tensor& tensor, const char* name, int64_t count,
                  int64_t of_row) {
  const Buffer scales(target, tensor, name);
  if (scales.dtype != DType::f32)
    fail("ValueError", name, " is ", name_of(scales.dtype), ", but must be float32");
  if (tensor.numel() != count)
    fail("ValueError", name, " has ", counted(tensor.numel(), "element"), ", but needs ", count);
  return {scales.data, of_row};
}

// What is passed besides x and where its results go; null: not passed.
struct Operands {
  const std::optional<Tensor>&residual, &bias, &scale, &scale_out;
  const Tensor &weight, &out, &residual_out;
};

// Fills in the fields, each checked.
void check_fields(const Target& target, const Tensor& x_tensor, const RowsOf& x,
                  const Operands& operands, NormCall& row) {
  const RowsOf weight = of_columns(target, operands.weight, "weight", x);
  const RowsOf out(target, operands.out, "out"), sum(target, operands.residual_out, "residual_out");
  std::optional<RowsOf> residual, bias;
  const auto set = [&](NormField which, const RowsOf& rows, int64_t stride_bytes) {
    row.set_elements(which, {rows.data, stride_bytes}, size_of(rows.dtype), size_of(x.dtype));
  };
  std::vector<const RowsOf*> read = {&x, &weight};
  if (operands.residual) {
    read.push_back(&residual.emplace(target, *operands.residual, "residual"));
    expect_shape_of_x(*operands.residual, *residual, x_tensor);
    expect_dtype(*residual, x.dtype);
    set(kResidual, *residual, residual->stride_bytes);
  }
  expect_shape_of_x(operands.out, out, x_tensor);
  expect_dtype(out, row.quant == Quant::none ? x.dtype : DType::f8e4m3);
  expect_shape_of_x(operands.residual_out, sum, x_tensor);
  expect_dtype(sum, x.dtype);
  if (operands.bias) {
    read.push_back(&bias.emplace(of_columns(target, *operands.bias, "bias", x)));
    if (bias->dtype != weight.dtype)
      fail("ValueError", "bias is ", name_of(bias->dtype), ", but weight is ",
           name_of(weight.dtype));
    set(kBias, *bias, 0);
  }
  if (x.rows > 0) {
    for (const RowsOf* each : read) expect_apart(out, *each, each == &x);
    read.push_back(&out);
    for (const RowsOf* each : read) expect_apart(sum, *each, residual && each == &*residual);
  }
  row.weight = weight.dtype;
  set(kWeight, weight, 0);
  set(kY, out, out.stride_bytes);
  set(kSum, sum, sum.stride_bytes);
  if (row.quant == Quant::none && out.stride_bytes == x.row_bytes()) {
    row.room = out.data;
  } else if (sum.stride_bytes == x.row_bytes() && !(residual && residual->data == sum.data)) {
    row.room = sum.data;
  }
  const auto of_row = static_cast<int64_t>(row.scale_bytes());
  if ((row.quant == Quant::fp8) != operands.scale.has_value())
    fail("ValueError", "scale is ", operands.scale ? "" : "not ", "given, but ",
         operands.scale ? "only quant='fp8' takes one" : "quant='fp8' needs one");
  if (operands.scale) row.rows.fields[kScale] = scale_field(target, *operands.scale, "scale", 1, 0);
  if (operands.scale_out)
    row.rows.fields[kComputedScale] =
        scale_field(target, *operands.scale_out, "scale_out", x.rows * of_row / 4, of_row);
}

void all_reduce_rms_norm(Target& target, const Tensor& x_tensor,
                         const std::optional<Tensor>& residual, const Tensor& weight,
                         const std::optional<Tensor>& bias, const std::optional<Tensor>& scale,
                         const Tensor& out, const Tensor& residual_out,
                         const std::optional<Tensor>& scale_out, double eps, double weight_bias,
                         bool center, const std::optional<std::string>& quant) {
  const RowsOf x(target, x_tensor, "x");
  expect_summable(x_tensor, x);
  NormCall row{};
  row.op = Op::all_reduce_rms_norm;
  row.quant = quant_named(quant, x);
  row.center = center;
  row.rows = rows_of(x);
  row.rows.numbers[kEps] = static_cast<float>(eps);
  row.rows.numbers[kWeightBias] = static_cast<float>(weight_bias);
  check_fields(target, x_tensor, x, {residual, bias, scale, scale_out, weight, out, residual_out},
               row);
  row.epilogue = static_cast<uint64_t>(row.quant) << 1 | row.center;
  row.types = static_cast<uint64_t>(row.weight);
  row.describe = [&] {
    return EpilogueText{text("weight=", name_of(row.weight), " center=", center ? "yes" : "no",
                             " quant=", name_of(row.quant)),
                        ""};
  };
  for (const Tensor* each : {&out, &residual_out}) target.writes(*each);
  run_rows(target, x_tensor, x, row, row.rows.width | uint64_t{row.form()} << 32);
}

COMMLIB_COLLECTIVE(
    all_reduce_rms_norm,
    "x, residual, weight, bias, scale, out, residual_out, scale_out, eps, weight_bias, "
    "center, quant");

}  // namespace
}  // namespace commlib::binding
