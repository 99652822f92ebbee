// index for Python: check the tensors, run where they lie. commlib/kernels/index.py makes `out`
// where the caller gives none.
#include "kernels/index.h"

#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <string>

#include "binding/counters.h"
#include "binding/entry.h"
#include "binding/launches.h"
#include "binding/tensors.h"

namespace commlib::binding {
namespace {

kernels::Table table_of(const TensorView& weights, int64_t start, int64_t length) {
  if (weights.ndim() != 2) {
    fail("ValueError", "weights has ", weights.ndim(),
         " dimensions, but index takes rows of a table of 2; reshape it");
  }
  if (weights.size(1) > 1 && weights.stride(1) != 1) {
    fail("ValueError", "the elements of a row of weights are ", weights.stride(1),
         " apart, but must be 1; pass weights.contiguous()");
  }
  if (start < 0 || length < 0 || length > weights.size(0) || start > INT64_MAX - length) {
    fail("ValueError", "vocab_range starts at ", start, " and is ", length,
         " long, but must start at 0 or above and fit the ", weights.size(0),
         " rows of weights; pass (start, length) of this shard");
  }
  const int64_t bytes = element_bytes(weights);
  return {bytes_of(weights), weights.stride(0) * bytes,
          static_cast<size_t>(weights.size(1) * bytes), start, length};
}

kernels::Ids ids_of(const TensorView& ids) {
  return {bytes_of(ids),      is_wide(ids, "ids"),  ids.IsContiguous(), ids.ndim(),
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
  if (!same_type(out.dtype(), weights.dtype()))
    fail("ValueError", "out and weights are of different types; give out the dtype of weights");
  if (!has_shape(out, weights, ids)) {
    fail("ValueError", "out has the shape [", shape_of(out), "], but ids and weights give [",
         shape_of(ids), ids.ndim() > 0 ? ", " : "", weights.size(1), "]; make it with that shape");
  }
  if (!out.IsContiguous())
    fail("ValueError",
         "out is not contiguous, but must be; pass out.contiguous() and copy it back");
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

[[noreturn]] void fail_outside(const kernels::Ids& ids, int64_t position, const std::string& id,
                               int64_t rows) {
  fail("ValueError", place_of(ids, position), id, ", but weights has ", rows,
       " rows, numbered from 0; correct it, or pass out_of_range=\"zero\" or \"count\"");
}

bool run_on_cpu(const kernels::Table& table, const kernels::Ids& ids, const TensorView& out,
                const std::string& policy) {
  const InterpreterLock lock(static_cast<size_t>(ids.count) * table.row_bytes);
  int64_t id = 0;
  const int64_t bad = policy == "raise" ? kernels::first_outside(table, ids, &id) : ids.count;
  if (bad < ids.count) fail_outside(ids, bad, text(" is ", id), table.length);
  const int64_t outside = kernels::gather(table, ids, bytes_of(out));
  if (policy == "count") cpu_counter(kIndexCounter) += outside;
  return true;
}

bool run_on_gpu(const kernels::Table& table, const kernels::Ids& ids, const TensorView& out,
                const std::string& policy) {
  if (!ids.contiguous) return false;
  if (ids.count == 0) return true;
  const DLDevice device = out.device();
  kernels::IndexJob job = {};
  job.table = table.data;
  job.stride_bytes = table.stride_bytes;
  job.row_bytes = static_cast<long long>(table.row_bytes);
  job.ids = ids.data;
  job.wide = ids.wide;
  job.count = ids.count;
  job.out = bytes_of(out);
  job.start = table.start;
  job.length = static_cast<unsigned long long>(table.length);
  if (policy == "raise") {
    const InterpreterLock lock(SIZE_MAX);  // the GPU may have much to do before
    const int64_t bad = first_outside_on(&job, device);
    if (bad >= 0) fail_outside(ids, bad, " names no row", table.length);
  }
  if (policy == "count") job.counter = counter_on(device.device_id, kIndexCounter);
  launch_index(&job, device);
  return true;
}

// Without a vocabulary range the range is the whole table: start 0, length its rows (-1 stands for
// them). `policy` is "zero", "count" or "raise". Returns false, with nothing done, if it needs
// contiguous ids.
bool index(TensorView out, TensorView weights, TensorView ids_view, int64_t start, int64_t length,
           ffi::String policy) {
  return guarded([&] {
    const Place place(weights);
    place.holds(ids_view, "ids");
    place.holds(out, "out");
    const int64_t rows = weights.ndim() > 0 && length < 0 ? weights.size(0) : length;
    const kernels::Table table = table_of(weights, start, rows);
    const kernels::Ids ids = ids_of(ids_view);
    fits(out, weights, ids_view);
    apart(out, "out", weights, "weights");
    apart(out, "out", ids_view, "ids");
    return (place.is_cpu() ? run_on_cpu : run_on_gpu)(table, ids, out, policy);
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("commlib.kernels.index", index);
}

}  // namespace
}  // namespace commlib::binding
