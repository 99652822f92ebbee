// all_reduce_epilogue for Python: rows, summed, with an epilogue of the user's on each, as
// commlib/compile/epilogue.py declares and generates it.
#include <algorithm>
#include <string>
#include <vector>

#include "binding/calls.h"
#include "binding/rows.h"

namespace commlib::binding {
namespace {

using python::Owned;

enum Kind : int64_t { kRow, kColumns, kNumber, kGroups };  // as commlib/compile/epilogue.py: KINDS
constexpr int64_t kOfX = -1;                               // in place of an element type

// A declaration, whose fields are those of Rows: inputs, then outputs.
struct Epilogue {
  static constexpr const char* kName = "Epilogue";

  std::string function;            // by which errors name it
  std::string tensors, numbers;    // names: "residual, weight, out"
  std::vector<std::string> names;  // of the tensors
  std::vector<int64_t> kinds, dtypes;
  size_t inputs;
  size_t number_count;
  uint64_t digest;
  EpilogueText text;
};

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < names.size(); at += parts.back().size() + 2)
    parts.push_back(names.substr(at, names.find(", ", at) - at));
  return parts;
}

std::unique_ptr<Epilogue> open_epilogue(const std::string& name, const std::string& tensors,
                                        const std::vector<int64_t>& kinds,
                                        const std::vector<int64_t>& dtypes, int64_t inputs,
                                        const std::string& numbers, int64_t digest,
                                        const std::string& symbol, const std::string& source) {
  return std::make_unique<Epilogue>(Epilogue{name,
                                             tensors,
                                             numbers,
                                             split(tensors),
                                             kinds,
                                             dtypes,
                                             static_cast<size_t>(inputs),
                                             split(numbers).size(),
                                             static_cast<uint64_t>(digest),
                                             {"epilogue=" + symbol, source}});
}

// The fields of one call, each checked.
class Fields {
 public:
  Fields(const Target& target, const Epilogue& epilogue, const Tensor& x_tensor, const RowsOf& x)
      : target_(target), epilogue_(epilogue), x_tensor_(x_tensor), x_(x) {
    row.op = Op::all_reduce_epilogue;
    row.rows = rows_of(x);
    row.epilogue = epilogue.digest;
    rows_.reserve(kMaxFields);  // they are pointed to
  }

  void add(Object* argument) {
    const size_t at = fields_++;
    const bool is_input = at < epilogue_.inputs;
    if (is_input && python::is_none(argument)) {
      add_type(at, x_.dtype);
      return;
    }
    const Tensor tensor(
        argument, {epilogue_.tensors.c_str(), static_cast<int>(at), epilogue_.function.c_str()});
    const RowsOf& rows = rows_.emplace_back(target_, tensor, epilogue_.names[at].c_str());
    const Field field{rows.data, expect_kind(at, tensor, rows)};
    if (epilogue_.kinds[at] == kRow || epilogue_.kinds[at] == kColumns)
      row.set_elements(static_cast<int>(at), field, size_of(rows.dtype), size_of(x_.dtype));
    else
      row.rows.fields[at] = field;
    if (is_input) {
      expect_element(rows);
      add_type(at, rows.dtype);
      read_.push_back({&rows, epilogue_.kinds[at] == kRow});
    } else {
      const int64_t dtype = epilogue_.dtypes[at];
      expect_dtype(rows, dtype == kOfX ? x_.dtype : static_cast<DType>(dtype));
      place(at, rows);
      target_.writes(tensor);
    }
  }

  // In words, for the compiler.
  std::string types() const {
    std::string words;
    for (size_t i = 0; i < epilogue_.inputs; ++i)
      words += (i ? "," : "") + std::string(commlib::name_of(static_cast<DType>(type(i))));
    return words;
  }

  RowCall row{};

 private:
  struct Read {
    const RowsOf* rows;
    bool is_row;  // which a row may replace
  };

  // How far its rows are apart, for the rows of x.
  int64_t expect_kind(size_t at, const Tensor& tensor, const RowsOf& rows) const {
    switch (epilogue_.kinds[at]) {
      case kRow:
        expect_shape_of_x(tensor, rows, x_tensor_);
        return rows.stride_bytes;
      case kColumns:
        expect_columns(tensor, rows, x_);
        return 0;
      case kNumber:
        if (at < epilogue_.inputs && tensor.numel() == 1) return 0;
        expect_numbers(tensor, rows, 1, "one number for each row");
        return rows.stride_bytes;
      default:
        if (x_.width % static_cast<int64_t>(kGroupColumns) != 0)
          fail("ValueError", "x has rows of ", x_.width, ", but ", rows.name,
               " needs a multiple of ", kGroupColumns);
        expect_numbers(tensor, rows, x_.width / static_cast<int64_t>(kGroupColumns),
                       "one number for each 128 columns");
        return rows.stride_bytes;
    }
  }
  void expect_numbers(const Tensor& tensor, const RowsOf& rows, int64_t width,
                      const char* what) const {
    if (is_shaped(tensor, x_tensor_, width)) return;
    fail("ValueError", rows.name, " has shape ", shape_of(tensor), ", but needs ", what, " of x, ",
         shape_of(x_tensor_), ": a last dimension of ", width);
  }
  static void expect_element(const RowsOf& rows) {
    constexpr DType known[] = {DType::f32,    DType::f16,    DType::bf16,
                               DType::f8e4m3, DType::f8e5m2, DType::i8};
    if (std::find(std::begin(known), std::end(known), rows.dtype) == std::end(known))
      fail("ValueError", rows.name, " is ", name_of(rows.dtype),
           ", but must be float32, float16, bfloat16, float8_e4m3fn, float8_e5m2 or int8");
  }

  void place(size_t at, const RowsOf& output) {
    if (x_.rows == 0) return;
    const bool is_row = epilogue_.kinds[at] == kRow;
    expect_apart(output, x_, is_row);
    bool replaces = false;
    for (const Read& other : read_) {
      expect_apart(output, *other.rows, is_row && other.is_row);
      replaces = replaces || output.data == other.rows->data;
    }
    read_.push_back({&output, false});
    if (is_row && !replaces && !row.room && output.dtype == x_.dtype &&
        output.stride_bytes == x_.row_bytes())
      row.room = output.data;
  }

  void add_type(size_t at, DType dtype) { row.types |= static_cast<uint64_t>(dtype) << 8 * at; }
  int type(size_t at) const { return static_cast<int>(row.types >> 8 * at & 0xff); }

  const Target& target_;
  const Epilogue& epilogue_;
  const Tensor& x_tensor_;
  const RowsOf& x_;
  size_t fields_ = 0;
  std::vector<RowsOf> rows_;
  std::vector<Read> read_;
};

// `sums`: where Python wants the sums, of which it makes the results itself; else they are made
// here.
void all_reduce_epilogue(Target& target, const Epilogue* epilogue, const Tensor& x_tensor,
                         Object* tensors, Object* numbers, const std::optional<Tensor>& sums) {
  const RowsOf x(target, x_tensor, "x");
  expect_summable(x_tensor, x);
  Fields fields(target, *epilogue, x_tensor, x);
  for (size_t i = 0; i < epilogue->names.size(); ++i)
    fields.add(Owned(PySequence_GetItem(tensors, static_cast<Size>(i))).get());
  RowCall& row = fields.row;
  for (size_t i = 0; i < epilogue->number_count; ++i) {
    const Owned number(PySequence_GetItem(numbers, static_cast<Size>(i)));
    row.rows.numbers[i] = static_cast<float>(From<double>::take(
        number.get(),
        {epilogue->numbers.c_str(), static_cast<int>(i), epilogue->function.c_str()}));
  }
  row.describe = [&] {
    return EpilogueText{epilogue->text.words + " types=" + fields.types(), epilogue->text.source};
  };
  const uint64_t prime = 1099511628211u;
  run_rows(target, x_tensor, x, row,
           ((row.epilogue ^ row.types) * prime ^ static_cast<uint64_t>(x.width)) * prime,
           sums ? &*sums : nullptr);
}

COMMLIB_METHOD_OF_CALLS(collective_of, all_reduce_epilogue,
                        "epilogue, x, tensors, numbers, sums, max_sms",
                        "Sequence[Tensor | None]; Sequence[float]");

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("open_epilogue", open_epilogue,
                             "name, tensors, kinds, dtypes, inputs, numbers, digest, symbol, "
                             "source")});
  module.add_class<Epilogue>({});
}

}  // namespace
}  // namespace commlib::binding
