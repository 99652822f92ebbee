// Data movement without a communicator, for Python: check the tensors, run. commlib/kernels/ has
// the public half, which makes `out` where the caller gives none.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <atomic>
#include <string>

#include "binding/entry.h"
#include "commlib/check.h"
#include "kernels/index.h"

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;
using ffi::TensorView;

// Rows that calls with out_of_range="count" filled with zeros since the last reset.
std::atomic<int64_t> outside_rows{0};

size_t element_bytes(const TensorView& tensor) {
  const DLDataType type = tensor.dtype();
  return static_cast<size_t>(type.bits) * type.lanes / 8;
}

unsigned char* bytes_of(const TensorView& tensor) {
  return static_cast<unsigned char*>(tensor.data_ptr()) + tensor.byte_offset();
}

std::string shape_of(const TensorView& tensor) {
  std::string all;
  for (int64_t size : tensor.shape()) all += (all.empty() ? "" : ", ") + std::to_string(size);
  return all;
}

void on_cpu(const TensorView& tensor, const char* name) {
  if (tensor.device().device_type != kDLCPU)
    fail("Unsupported", name, " is not in the CPU's memory, which this kernel reads and writes");
}

kernels::Table table_of(const TensorView& weights, int64_t start, int64_t length) {
  on_cpu(weights, "weights");
  if (weights.ndim() != 2) {
    fail("ValueError", "weights has ", weights.ndim(),
         " dimensions, but index takes rows of a table of 2; reshape it");
  }
  if (weights.size(1) > 1 && weights.stride(1) != 1) {
    fail("ValueError", "the elements of a row of weights are ", weights.stride(1),
         " apart, but must be 1; pass weights.contiguous()");
  }
  const auto bytes = static_cast<int64_t>(element_bytes(weights));
  return {bytes_of(weights), weights.stride(0) * bytes,
          static_cast<size_t>(weights.size(1) * bytes), start, length};
}

kernels::Ids ids_of(const TensorView& ids) {
  on_cpu(ids, "ids");
  const DLDataType type = ids.dtype();
  if (type.code != kDLInt || type.lanes != 1 || (type.bits != 32 && type.bits != 64))
    fail("ValueError", "ids has another type than int32 or int64; pass ids.long()");
  return {bytes_of(ids),      type.bits == 64,      ids.IsContiguous(), ids.ndim(),
          ids.shape().data(), ids.strides().data(), ids.numel()};
}

// The shape of ids, and the row.
bool has_shape(const TensorView& out, const TensorView& weights, const TensorView& ids) {
  if (out.ndim() != ids.ndim() + 1 || out.size(-1) != weights.size(1)) return false;
  for (int d = 0; d < ids.ndim(); ++d) {
    if (out.size(d) != ids.size(d)) return false;
  }
  return true;
}

void fits(const TensorView& out, const TensorView& weights, const TensorView& ids) {
  on_cpu(out, "out");
  const DLDataType has = out.dtype(), needs = weights.dtype();
  if (has.code != needs.code || has.bits != needs.bits || has.lanes != needs.lanes)
    fail("ValueError", "out and weights are of different types; give out the dtype of weights");
  if (!has_shape(out, weights, ids)) {
    fail("ValueError", "out has the shape [", shape_of(out), "], but ids and weights give [",
         shape_of(ids), ids.ndim() > 0 ? ", " : "", weights.size(1), "]; make it with that shape");
  }
  if (!out.IsContiguous())
    fail("ValueError",
         "out is not contiguous, but must be; pass out.contiguous() and copy it back");
}

// The first byte of a tensor and the byte after its last; strides are 0 or more.
struct Span {
  const unsigned char* begin;
  const unsigned char* end;

  explicit Span(const TensorView& tensor) : begin(bytes_of(tensor)), end(begin) {
    if (tensor.numel() == 0) return;
    int64_t last = 0;
    for (int d = 0; d < tensor.ndim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    end += (last + 1) * static_cast<int64_t>(element_bytes(tensor));
  }
};

void apart(const TensorView& out, const TensorView& other, const char* name) {
  const Span a(out), b(other);
  if (a.begin == a.end || b.begin == b.end || a.end <= b.begin || b.end <= a.begin) return;
  fail("ValueError", "out overlaps ", name,
       ", which is read while out is written; pass another out");
}

// "ids[1, 2]" for a flat position; "ids" for a tensor without dimensions.
std::string place_of(const kernels::Ids& ids, int64_t position) {
  std::string place;
  for (int d = ids.ndim - 1; d >= 0; --d) {
    place = std::to_string(position % ids.shape[d]) + (place.empty() ? "" : ", ") + place;
    position /= ids.shape[d];
  }
  return place.empty() ? "ids" : "ids[" + place + "]";
}

void all_inside(const kernels::Table& table, const kernels::Ids& ids) {
  int64_t id = 0;
  const int64_t position = kernels::first_outside(table, ids, &id);
  if (position == ids.count) return;
  fail("ValueError", place_of(ids, position), " is ", id, ", but weights has ", table.length,
       " rows, numbered from 0; correct it, or pass out_of_range=\"zero\" or \"count\"");
}

// Without a vocabulary range the range is the whole table: start 0, length its rows. `policy` is
// "zero", "count" or "raise".
void index(TensorView out, TensorView weights, TensorView ids_view, int64_t start, int64_t length,
           ffi::String policy) {
  guarded([&] {
    const kernels::Table table = table_of(weights, start, length);
    const kernels::Ids ids = ids_of(ids_view);
    if (start < 0 || length < 0 || length > weights.size(0) || start > INT64_MAX - length) {
      fail("ValueError", "vocab_range starts at ", start, " and is ", length,
           " long, but must start at 0 or above and fit the ", weights.size(0),
           " rows of weights; pass (start, length) of this shard");
    }
    fits(out, weights, ids_view);
    apart(out, weights, "weights");
    apart(out, ids_view, "ids");
    if (policy == "raise") all_inside(table, ids);
    const int64_t outside = kernels::gather(table, ids, bytes_of(out));
    if (policy == "count") outside_rows += outside;
  });
}

int64_t out_of_range_count(bool reset) {
  return reset ? outside_rows.exchange(0) : outside_rows.load();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("commlib.kernels.index", index)
      .def("commlib.kernels.out_of_range_count", out_of_range_count);
}

}  // namespace
}  // namespace commlib::binding
