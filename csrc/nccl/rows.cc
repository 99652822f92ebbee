// Calls that end with what is done to each row of the sum: by one kernel, or by another call and a
// kernel behind it.
#include <algorithm>
#include <utility>

#include "nccl/call_words.h"
#include "nccl/group.h"

namespace commlib::nccl {
namespace {

constexpr unsigned kResidentRows = 2;  // on a multiprocessor, where nobody waits for peers

// Rows of x that lie at `in`, for a kernel.
Rows rows_at(const Rows& rows, const unsigned char* in, int64_t stride_bytes) {
  Rows placed = rows;
  placed.in_stride_bytes = stride_bytes;
  const u64 place = reinterpret_cast<u64>(in) | static_cast<u64>(stride_bytes);
  placed.aligned = rows.aligned && place % 16 == 0;
  return placed;
}

}  // namespace

unsigned Group::limit_of(const Call& call) const {
  return call.max_sms && call.max_sms < job_.tile_blocks ? call.max_sms : max_sms_;
}

void Group::run_rows(const Call& call, const Choice& choice, CUstream stream, uint64_t capture) {
  const Shape shape = shape_of(choice.params);
  const u32 row_bytes = call.rows->rows.width * static_cast<u32>(call.element());
  const bool in_tiles = shape.tile_bytes > 0;
  // Tiles have whole rows: wide ones go another way.
  if (plan_.row(choice.algorithm).composed || (in_tiles && row_bytes > kMaxTileRowBytes))
    return compose_rows(call, stream);
  const int kernel = natives_[static_cast<size_t>(choice.algorithm)].kernel;
  const auto& instance = kernels_.get_row(kernel, call, world_);
  Job job = job_;
  job.in = call.in;
  job.bytes = call.bytes();
  job.what = pack(call, choice.algorithm, inner_);
  job.tile_bytes = in_tiles ? row_tile_bytes(row_bytes, shape.tile_bytes) : 0;
  const u64 of_unit = in_tiles ? job.tile_bytes / row_bytes : 1;
  const u64 units = (call.rows->rows.rows + of_unit - 1) / of_unit;
  const unsigned of_cluster = instance.cluster_blocks;
  const unsigned threads = in_tiles ? kRowTileThreads : kRowThreads / of_cluster;
  u64 at_once = std::min<u64>(units, max_blocks(shape, call, instance, threads));
  // A cluster may lie on as many multiprocessors as it has blocks.
  const unsigned limit = limit_of(call) ? limit_of(call) : max_blocks_;
  at_once = std::min<u64>(at_once, std::max(std::min(limit, max_blocks_) / of_cluster, 1u));
  const unsigned blocks = static_cast<unsigned>(at_once) * of_cluster;
  job.signature =
      Signature(job.what, job.bytes, call.detail, blocks, threads, job.tile_bytes).bits();
  const Rows rows = rows_at(call.rows->rows, call.in, call.rows->rows.in_stride_bytes);
  launch_in_order(instance, job, &rows, {blocks, threads}, stream, capture);
}

void Group::compose_rows(const Call& call, CUstream stream) {
  const RowCall& row = *call.rows;
  const auto& last = own_rows_kernel(call);  // what cannot be compiled leaves all as it is
  const auto row_bytes = static_cast<int64_t>(row.rows.width * call.element());
  Call part{Op::all_reduce, call.dtype};
  part.count = call.count;
  part.detail = call.detail;  // which ranks compare
  part.max_sms = call.max_sms;
  part.in = call.in;
  part.out = row.room ? row.room : row.scratch(call.bytes());
  if (row.rows.in_stride_bytes != row_bytes && row.rows.rows > 1) {
    copy_rows(part.out, call, stream);
    part.in = part.out;
  }
  const bool inner = std::exchange(inner_, true);
  try {
    run(part, part.bytes(), false, stream);
  } catch (...) {
    inner_ = inner;
    throw;
  }
  inner_ = inner;
  finish_rows(call, last, part.out, row_bytes, stream);
}

void Group::copy_rows(unsigned char* to, const Call& call, CUstream stream) {
  const Rows& rows = call.rows->rows;
  CUmemcpy2D copy{};
  copy.from_type = copy.to_type = kMemoryDevice;
  copy.from = device_pointer(call.in);
  copy.to = device_pointer(to);
  copy.from_pitch = static_cast<size_t>(rows.in_stride_bytes);
  copy.width_bytes = copy.to_pitch = rows.width * call.element();
  copy.height = rows.rows;
  check(cuda().cuMemcpy2DAsync(&copy, stream), "cuMemcpy2DAsync");
}

const Kernels::Instance& Group::own_rows_kernel(const Call& call) {
  const int composed = plan_.find_row(Op::all_reduce_rms_norm, "nccl_composed");
  return kernels_.get_row(natives_[static_cast<size_t>(composed)].kernel, call, 1);
}

void Group::finish_rows(const Call& call, const Kernels::Instance& kernel, const unsigned char* in,
                        int64_t stride_bytes, CUstream stream) {
  const Rows rows = rows_at(call.rows->rows, in, stride_bytes);
  Job job = job_;
  job.in = in;
  job.bytes = call.bytes();
  const unsigned limit = limit_of(call);
  const u64 max_grid = limit ? limit : u64{kResidentRows} * job_.tile_blocks;
  const u64 blocks = std::min<u64>(rows.rows, max_grid);
  Kernels::launch(kernel, job, &rows, {static_cast<unsigned>(blocks), kRowThreads, 0, true},
                  stream);
}

}  // namespace commlib::nccl
