// store for Python: see caches and rows as pages, slots and heads | match them | fill the job |
// run.
#include <cmath>
#include <limits>

#include "binding/interpreter.h"
#include "kernels/counters.h"
#include "kernels/scale.h"
#include "kernels/store/cache.h"
#include "kernels/store/host.h"

namespace commlib::kernels {
namespace {

using binding::same_type;

Counter counter("store");

std::string name_of(const Tensor& tensor) { return binding::name_of(tensor.type()); }

void read_scale(const Scale& scale, StoreSide* side, i64 heads, const OneDevice& where) {
  const char* name = scale.name;
  side->scale = 1;
  if (scale.is_none()) return;
  if (scale.number) {
    side->scale = static_cast<float>(*scale.number);
    if (side->scale > 0 && std::isfinite(side->scale) && std::isfinite(1 / side->scale)) return;
    fail("ValueError", name, " is ", *scale.number, ", but must be above 0 and finite in float32");
  }
  const Tensor& tensor = *scale.tensor;
  where.holds(tensor, name);
  if (!same_type(tensor.type(), {binding::kFloat, 32, 1}) || !tensor.is_contiguous()) {
    fail("ValueError", name, " is ", name_of(tensor), ", but must be contiguous float32; pass ",
         name, ".float().contiguous()");
  }
  if (tensor.numel() != 1 && tensor.numel() != heads) {
    fail("ValueError", name, " has ", counted(tensor.numel(), "element"), ", but must have 1",
         heads > 1 ? text(", or one for each of the ", heads, " heads") : "");
  }
  side->scales = reinterpret_cast<const float*>(tensor.data());
  side->scales_step = tensor.numel() > 1;
}

// Bytes, and one run for the whole row where its heads lie densely on both sides.
StoreSide side_of(const Cache& cache, const Rows& rows, const StoreSide& scaled, i64 to_bytes,
                  i64 from_bytes) {
  StoreSide side = scaled;
  side.from = rows.data;
  side.from_row = rows.to_row * from_bytes;
  side.to = cache.data;
  side.to_page = cache.to_page * to_bytes;
  side.to_slot = cache.to_slot * to_bytes;
  const bool dense =
      cache.heads == 1 || (cache.to_head == cache.width && rows.to_head == rows.width);
  if (dense && side.scales_step == 0) {
    side.segments = 1;
    side.segment_elements = cache.heads * cache.width;
    side.from_segment = side.to_segment = 0;
  } else {
    side.segments = cache.heads;
    side.segment_elements = cache.width;
    side.from_segment = rows.to_head * from_bytes;
    side.to_segment = cache.to_head * to_bytes;
  }
  return side;
}

struct Conversion {
  StoreFrom from = StoreFrom::bytes;
  StoreAs as = StoreAs::copy;
};

Conversion conversion_of(const Tensor& cache, const Tensor& rows, const char* name) {
  const ElementType to = cache.type(), from = rows.type();
  if (same_type(to, from)) return {};
  const StoreAs as = to.code == binding::kFloat8_e4m3fn ? StoreAs::e4m3
                     : to.code == binding::kFloat8_e5m2 ? StoreAs::e5m2
                                                        : StoreAs::copy;
  if (as != StoreAs::copy) {
    if (same_type(from, {binding::kFloat, 32, 1})) return {StoreFrom::f32, as};
    if (same_type(from, {binding::kFloat, 16, 1})) return {StoreFrom::f16, as};
    if (same_type(from, {binding::kBfloat, 16, 1})) return {StoreFrom::bf16, as};
  }
  fail("ValueError", name, " is ", name_of(rows), ", but its cache is ", name_of(cache),
       "; convert ", name, " (store itself rounds bfloat16, float16 and float32 to 8-bit floats)");
}

// log2 of a page size, or -1.
int shift_of(i64 page_size) {
  int shift = 0;
  while (shift < 62 && (i64{1} << shift) < page_size) ++shift;
  return (i64{1} << shift) == page_size ? shift : -1;
}

// Whether two tensors share a byte for certain: views of one pool may lie between each other.
class Extent {
 public:
  explicit Extent(const Tensor& tensor) : span_(tensor) {
    dense_ = span_.end - span_.begin == tensor.numel() * tensor.item_bytes();
  }
  bool shares_with(const Extent& other) const {
    if (span_.begin == span_.end || other.span_.begin == other.span_.end) return false;
    return span_.begin == other.span_.begin || (dense_ && holds_an_end_of(other)) ||
           (other.dense_ && other.holds_an_end_of(*this));
  }

 private:
  bool holds(const u8* byte) const { return span_.begin <= byte && byte < span_.end; }
  bool holds_an_end_of(const Extent& other) const {
    return holds(other.span_.begin) || holds(other.span_.end - 1);
  }

  Span span_;
  bool dense_;
};

// The arguments as they came.
struct Call {
  const Tensor &k_cache, &v_cache;
  bool has_v_cache;
  const Tensor &slots, &k, &v;
  bool hnd, unique;
  const Scale &k_scale, &v_scale;
  const std::vector<int64_t>& reserved;
  OneDevice where;
};

void are_apart(const Call& call) {
  const Extent k_cache(call.k_cache), v_cache(call.v_cache);
  if (call.has_v_cache && k_cache.shares_with(v_cache))
    fail("ValueError", "k_cache overlaps v_cache; pass two caches, or v_cache=None for one row");
  const auto apart_from_caches = [&](const Tensor& read, const char* name) {
    const Extent extent(read);
    if (k_cache.shares_with(extent) || v_cache.shares_with(extent))
      fail("ValueError", name, " overlaps a cache, which is written while it is read; pass a copy");
  };
  apart_from_caches(call.k, "k");
  apart_from_caches(call.v, "v");
  apart_from_caches(call.slots, "slots");
}

void take_slots(StoreJob* job, const Call& call) {
  const Tensor& slots = call.slots;
  if (slots.ndim() != 1) {
    fail("ValueError", "slots has ", slots.ndim(),
         " dimensions, but must have 1, a slot for each row; pass slots.flatten()");
  }
  job->wide = is_wide(slots, "slots");
  const i64 count = slots.size(0), k_rows = call.k.size(0), v_rows = call.v.size(0);
  if (count != k_rows || count != v_rows) {
    fail("ValueError", "slots names ", counted(count, "slot"), ", but k has ",
         counted(k_rows, "row"), " and v has ", v_rows, "; pass as many of each");
  }
  job->slots = slots.data();
  job->slots_step = slots.stride(0);
  job->tokens = count;
  if (call.reserved.size() > kMaxReserved) {
    fail("ValueError", "skip names ", call.reserved.size(), " slots, but at most ", kMaxReserved,
         " can be reserved");
  }
  job->num_reserved = static_cast<int>(call.reserved.size());
  for (int i = 0; i < job->num_reserved; ++i) job->reserved[i] = call.reserved[i];
}

void scales_apply(const Call& call, StoreAs as) {
  if (as != StoreAs::copy || (call.k_scale.is_none() && call.v_scale.is_none())) return;
  const Scale& scale = call.k_scale.is_none() ? call.v_scale : call.k_scale;
  fail("ValueError", scale.name, " is given, but rows of ", name_of(call.k), " go into a cache of ",
       name_of(call.k_cache), " as they are; leave it out");
}

Conversion conversion_of(const Call& call) {
  const Conversion k = conversion_of(call.k_cache, call.k, "k");
  const Conversion v = conversion_of(call.v_cache, call.v, "v");
  if (!same_type(call.k.type(), call.v.type()) || k.as != v.as) {
    fail("ValueError", "k is ", name_of(call.k), " for ", name_of(call.k_cache), " and v is ",
         name_of(call.v), " for ", name_of(call.v_cache), "; pass K and V of one type");
  }
  scales_apply(call, k.as);
  return k;
}

StoreJob job_of(const Call& call) {
  StoreJob job = {};
  job.unique = call.unique;
  take_slots(&job, call);
  Cache k_cache = cache_of(call.k_cache, "k_cache", call.hnd);
  Cache v_cache = cache_of(call.v_cache, "v_cache", call.hnd);
  Rows k = rows_of(call.k, "k"), v = rows_of(call.v, "v");
  const i64 to_bytes = call.k_cache.item_bytes(), from_bytes = call.k.item_bytes();
  if (!call.has_v_cache) divide(&k_cache, &v_cache, k, v, to_bytes);
  match(&k_cache, &k, "k");
  match(&v_cache, &v, "v");
  job.num_slots = k_cache.slots();
  job.page_size = share_pages(&k_cache, &v_cache);
  job.page_shift = shift_of(job.page_size);
  read_scale(call.k_scale, &job.sides[0], k.heads, call.where);
  read_scale(call.v_scale, &job.sides[1], v.heads, call.where);
  job.sides[0] = side_of(k_cache, k, job.sides[0], to_bytes, from_bytes);
  job.sides[1] = side_of(v_cache, v, job.sides[1], to_bytes, from_bytes);
  job.num_sides = 2;
  job.element_bytes = static_cast<u32>(from_bytes);
  return job;
}

void run(const Call& call) {
  call.where.holds(call.v_cache, "v_cache");
  call.where.holds(call.slots, "slots");
  call.where.holds(call.k, "k");
  call.where.holds(call.v, "v");
  const Conversion conversion = conversion_of(call);
  StoreJob job = job_of(call);
  are_apart(call);
  if (job.tokens == 0) return;
  binding::torch.raise_version(call.k_cache.object());
  if (call.has_v_cache) binding::torch.raise_version(call.v_cache.object());
  if (!call.where.is_cpu()) {
    job.counter = counter.on_gpu(call.where.device.index);
    return launch_store(&job, conversion.from, conversion.as, call.where.device);
  }
  const binding::InterpreterLock lock(static_cast<size_t>(call.k.numel() + call.v.numel()) *
                                      job.element_bytes);
  if (const i64 beyond = store(job, conversion.from, conversion.as)) counter.on_cpu() += beyond;
}

void store_rows(const Tensor& k_cache, const std::optional<Tensor>& v_cache, const Tensor& slots,
                const Tensor& k, const Tensor& v, bool hnd, bool unique, const Scale& k_scale,
                const Scale& v_scale_or_none, const std::vector<int64_t>& reserved) {
  Scale v_scale = v_scale_or_none;
  v_scale.name = "v_scale";
  if (!v_cache && v_scale.is_none()) v_scale = k_scale;
  run({k_cache, v_cache ? *v_cache : k_cache, v_cache.has_value(), slots, k, v, hnd, unique,
       k_scale, v_scale, reserved, OneDevice(k_cache)});
}

}  // namespace
}  // namespace commlib::kernels

namespace commlib::binding {

COMMLIB_FFI_FUNCTION(store, kernels::store_rows,
                     "k_cache, v_cache, slots, k, v, hnd, unique, k_scale, v_scale, skip")

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("store", kernels::store_rows,
                             "k_cache, v_cache, slots, k, v, hnd, unique, k_scale, v_scale, "
                             "skip")});
}

}  // namespace commlib::binding
