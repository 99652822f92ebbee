// index for Python: check the tensors, run where they lie. commlib/kernels/index.py makes `out`
// where the caller gives none.
#include <string>

#include "binding/ffi.h"
#include "binding/interpreter.h"
#include "kernels/counters.h"
#include "kernels/index/host.h"
#include "kernels/tensors.h"

namespace commlib::kernels {
namespace {

Counter counter("index");

Table table_of(const Tensor& weights, int64_t start, int64_t length) {
  if (weights.ndim() != 2) {
    fail("ValueError", "weights has ", counted(weights.ndim(), "dimension"),
         ", but must have 2: rows and columns; reshape it");
  }
  if (weights.size(1) > 1 && weights.stride(1) != 1) {
    fail("ValueError", "the elements of a row of weights are ", weights.stride(1),
         " apart, but must be 1; pass weights.contiguous()");
  }
  if (start < 0 || length < 0 || length > weights.size(0) || start > INT64_MAX - length) {
    fail("ValueError", "vocab_range starts at ", start, " and is ", length,
         " long, but must start at 0 or above and fit the ", counted(weights.size(0), "row"),
         " of weights; pass (start, length) of this shard");
  }
  const int64_t bytes = weights.item_bytes();
  return {weights.data(), weights.stride(0) * bytes, static_cast<size_t>(weights.size(1) * bytes),
          start, length};
}

Ids ids_of(const Tensor& ids) {
  return {ids.data(),  is_wide(ids, "ids"), ids.is_contiguous(), ids.ndim(),
          ids.shape(), ids.strides(),       ids.numel()};
}

// The shape of ids, and the row.
bool has_shape(const Tensor& out, const Tensor& weights, const Tensor& ids) {
  if (out.ndim() != ids.ndim() + 1 || out.size(-1) != weights.size(1)) return false;
  for (int d = 0; d < ids.ndim(); ++d) {
    if (out.size(d) != ids.size(d)) return false;
  }
  return true;
}

void fits(const Tensor& out, const Tensor& weights, const Tensor& ids) {
  if (!binding::same_type(out.type(), weights.type()))
    fail("ValueError", "out and weights are of different types; give out the dtype of weights");
  if (!has_shape(out, weights, ids)) {
    fail("ValueError", "out has the shape [", shape_of(out), "], but ids and weights give [",
         shape_of(ids), ids.ndim() > 0 ? ", " : "", weights.size(1), "]; make it with that shape");
  }
  if (!out.is_contiguous())
    fail("ValueError",
         "out is not contiguous, but must be; pass out.contiguous() and copy it back");
}

// "ids[1, 2]" for a flat position; "ids" for a tensor without dimensions.
std::string place_of(const Ids& ids, int64_t position) {
  std::string place;
  for (int d = ids.ndim - 1; d >= 0; --d) {
    place = std::to_string(position % ids.shape[d]) + (place.empty() ? "" : ", ") + place;
    position /= ids.shape[d];
  }
  return place.empty() ? "ids" : "ids[" + place + "]";
}

[[noreturn]] void fail_outside(const Ids& ids, int64_t position, const std::string& id,
                               int64_t rows) {
  fail("ValueError", place_of(ids, position), id, ", but weights has ", counted(rows, "row"),
       ", numbered from 0; correct it, or pass out_of_range=\"zero\" or \"count\"");
}

bool run_on_cpu(const Table& table, const Ids& ids, const Tensor& out, const std::string& policy) {
  const binding::InterpreterLock lock(static_cast<size_t>(ids.count) * table.row_bytes);
  int64_t id = 0;
  const int64_t bad = policy == "raise" ? first_outside(table, ids, &id) : ids.count;
  if (bad < ids.count) fail_outside(ids, bad, text(" is ", id), table.length);
  const int64_t outside = gather(table, ids, out.data());
  if (policy == "count") counter.on_cpu() += outside;
  return true;
}

bool run_on_gpu(const Table& table, const Ids& ids, const Tensor& out, const std::string& policy) {
  if (!ids.contiguous) return false;
  if (ids.count == 0) return true;
  const Device device = out.device();
  IndexJob job = {};
  job.table = table.data;
  job.stride_bytes = table.stride_bytes;
  job.row_bytes = static_cast<long long>(table.row_bytes);
  job.ids = ids.data;
  job.wide = ids.wide;
  job.count = ids.count;
  job.out = out.data();
  job.start = table.start;
  job.length = static_cast<unsigned long long>(table.length);
  if (policy == "raise") {
    const binding::InterpreterLock lock(SIZE_MAX);  // the GPU may have much to do before
    const int64_t bad = first_outside_on(&job, device);
    if (bad >= 0) fail_outside(ids, bad, " names no row", table.length);
  }
  if (policy == "count") job.counter = counter.on_gpu(device.index);
  launch_index(&job, device);
  return true;
}

// Without a vocabulary range the range is the whole table: start 0, length its rows (-1 stands for
// them). `policy` is "zero", "count" or "raise". Returns false, with nothing done, if it needs
// contiguous ids.
bool index(const Tensor& out, const Tensor& weights, const Tensor& ids_tensor, int64_t start,
           int64_t length, const std::string& policy) {
  const OneDevice where(weights);
  where.holds(ids_tensor, "ids");
  where.holds(out, "out");
  const int64_t rows = weights.ndim() > 0 && length < 0 ? weights.size(0) : length;
  const Table table = table_of(weights, start, rows);
  const Ids ids = ids_of(ids_tensor);
  fits(out, weights, ids_tensor);
  apart(out, "out", weights, "weights");
  apart(out, "out", ids_tensor, "ids");
  binding::torch.raise_version(out.object());
  return (where.is_cpu() ? run_on_cpu : run_on_gpu)(table, ids, out, policy);
}

void index_of_ffi(const Tensor& out, const Tensor& weights, const Tensor& ids, int64_t start,
                  int64_t length, const std::string& policy) {
  if (!index(out, weights, ids, start, length, policy))
    fail("ValueError", "ids is not contiguous, but must be on a GPU");
}
COMMLIB_FFI_FUNCTION(index, index_of_ffi, "out, weights, ids, start, length, out_of_range")

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("index", index, "out, weights, ids, start, length, out_of_range")});
}

}  // namespace
}  // namespace commlib::kernels
