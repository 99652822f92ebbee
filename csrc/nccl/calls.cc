// A group's calls: the plan's algorithm for one, and its launch.
#include <algorithm>

#include "nccl/call_words.h"
#include "nccl/group.h"
#include "nccl/moves.h"
#include "nccl/recorded.h"

namespace commlib::nccl {
namespace {

// Element type and reduction as kernels know them: a bool is a byte, a complex number two floats.
struct Elements {
  DType dtype;
  RedOp redop;

  explicit Elements(const Call& call) : dtype(call.dtype), redop(call.redop) {
    if (dtype == DType::boolean) {
      dtype = DType::u8;
      if (redop == RedOp::sum || redop == RedOp::max) redop = RedOp::bor;
      if (redop == RedOp::prod || redop == RedOp::min) redop = RedOp::band;
    }
    if (dtype == DType::c64) dtype = DType::f32;
    if (dtype == DType::c128) dtype = DType::f64;
  }
};

}  // namespace

void Group::run(const Call& call, size_t plan_bytes, bool symmetric, CUstream stream) {
  const ContextGuard guard(context_);
  const During planning(stamps_, Phase::plan);
  fault_.alive();
  // Ranks of an all_to_allv know their own sizes alone, and all count the call.
  const bool counts_empty = call.op == Op::barrier || call.op == Op::all_to_allv;
  if (plan_bytes == 0 && !counts_empty) return;
  if (world_ == 1 && call.rows)
    return finish_rows(call, own_rows_kernel(call), call.in, call.rows->rows.in_stride_bytes,
                       stream);
  if (world_ == 1) {
    if (call.out == call.in || call.bytes() == 0) return;
    return check(cuda().cuMemcpyDtoDAsync(device_pointer(call.out), device_pointer(call.in),
                                          call.bytes(), stream),
                 "cuMemcpyDtoDAsync");
  }
  const uint64_t capture = capture_of(stream);
  const Mode mode = capture ? Mode::graph : Mode::eager;
  // The communicator takes no more than tile_blocks for any call. Its own limit stands in its plan,
  // and decides for calls that spare the GPU, too.
  const bool limited = call.max_sms && call.max_sms < job_.tile_blocks;
  const bool spares = call.max_sms == kSparing && !max_sms_;
  const size_t bytes = differs_by_rank(call.op) ? kAnyBytes : plan_bytes;
  const Choice* const usual = plan_.find(mode, symmetric, call, bytes);
  const Choice* choice = usual;
  if (limited) choice = plan_.find_within(mode, symmetric, call, bytes);
  if (spares) choice = plan_.find_sparing(mode, symmetric, call, bytes, job_.tile_blocks);
  if (!choice && limited) fail_unlimited(call, usual);
  if (!choice) fail_unplanned(call, plan_bytes);
  enter(stamps_, Phase::launch);
  const Recorded recorded(*this, call, *choice, stream, capture);
  if (call.rows) {
    run_rows(call, *choice, stream, capture);
  } else if (plan_.row(choice->algorithm).engine) {
    pull(call, *choice, stream, capture);
  } else if (natives_[static_cast<size_t>(choice->algorithm)].vendor) {
    vendor(call, choice->algorithm, stream, capture);
  } else {
    launch(call, *choice, stream, capture);  // csrc/collectives/<collective>/<its name>.cu
  }
}

void Group::fail_unplanned(const Call& call, size_t plan_bytes) const {
  fail("Unsupported", "the plan has nothing for ", name_of(call.op), " of ", plan_bytes, " B of ",
       name_of(call.dtype), plan_.reduces(call.op) ? " " : "",
       plan_.reduces(call.op) ? name_of(call.redop) : "", " on nccl",
       no_arena_.empty() ? "" : ", where there is no symmetric memory: ", no_arena_);
}

// Of a call that runs without max_sms; `usual` is what would run.
void Group::fail_unlimited(const Call& call, const Choice* usual) const {
  if (!usual) return;
  const Row& row = plan_.row(usual->algorithm);
  fail("ValueError", "max_sms is ", call.max_sms, ", but ", name_of(call.op), " runs ", row.name,
       " here, which needs ", row.sms,
       " multiprocessors, and the plan has nothing that takes fewer; pass max_sms=", row.sms,
       " or more, or limit all calls of the communicator: commlib.init(max_sms=", call.max_sms,
       ")");
}

std::string Group::describe(uint64_t what) const {
  if (what == 0) return "nothing";
  const auto op = static_cast<Op>(what & 0xff);
  std::string description = name_of(op);
  if (op != Op::barrier) description += text(" ", name_of(static_cast<DType>(what >> 8 & 0xff)));
  if (plan_.reduces(op)) description += text(" ", name_of(static_cast<RedOp>(what >> 16 & 0xff)));
  description += " by " + plan_.row(static_cast<int>(what >> 32 & 0xffffff)).name;
  return what & kInner ? description + " (made inside another call)" : description;
}

// A grid leaves a multiprocessor to other communicators (nccl/footprint.h), and one of packets has
// a channel for each warp.
unsigned Group::max_blocks(const Shape& shape, const Call& call, const Kernels::Instance& instance,
                           unsigned threads) const {
  unsigned blocks = std::min(shape.blocks, max_blocks_);
  if (!Kernels::moves_tiles(instance))
    blocks =
        std::min(blocks, static_cast<unsigned>(channels(static_cast<u64>(world_))) * 32 / threads);
  return call.max_sms ? std::min(blocks, call.max_sms) : blocks;
}

void Group::launch(const Call& call, const Choice& choice, CUstream stream, uint64_t capture) {
  const int kernel = natives_[static_cast<size_t>(choice.algorithm)].kernel;
  const Shape shape = shape_of(choice.params);
  const Elements elements(call);
  const auto& instance = kernels_.get(kernel, elements.dtype, elements.redop);
  const unsigned threads = std::min(shape.threads, instance.max_threads);
  Job job = job_;
  job.in = call.in;
  job.out = call.out;
  job.bytes = call.bytes();
  job.what = pack(call, choice.algorithm, inner_);
  Moves moves;
  u64 share = job.bytes;  // of the work that the blocks deal out
  if (call.op != Op::all_reduce) {
    moves = moves_of(call, rank_, world_);
    share = moves.longest;
  }
  const u64 wanted = share / (u64{threads} * shape.grain_bytes) + 1;
  const u64 limit = max_blocks(shape, call, instance, threads);
  // Where ranks know their own sizes alone, nothing they must agree on follows from these.
  const bool alike = !differs_by_rank(call.op);
  const auto blocks = static_cast<unsigned>(alike ? std::min(wanted, limit) : limit);
  job.redop = static_cast<int>(elements.redop);
  job.tile_bytes = shape.tile_bytes;
  job.signature = Signature(alike ? job.what : static_cast<uint64_t>(call.op),
                            alike ? job.bytes : 0, call.detail, blocks, threads, shape.tile_bytes)
                      .bits();
  Size size{blocks, threads};
  if (call.op == Op::send_recv) {
    moves.max_blocks = blocks;
    moves.packet_bytes = std::min<u64>(shape.packet_bytes, u64{blocks} * kMailPackets * 8);
    const u64 longest = longest_message(moves, rank_);
    if (longest <= moves.packet_bytes) {
      job.tile_bytes = 0;
      const MailShare share(longest, blocks);
      const u64 warps = (share.packets + 31) / 32;
      size = {static_cast<unsigned>(share.blocks),
              static_cast<unsigned>(std::min<u64>(warps * 32, threads))};
    }
  }
  launch_in_order(instance, job, &moves, size, stream, capture);
}

void Group::launch_in_order(const Kernels::Instance& instance, Job& job, const void* more,
                            const Size& size, CUstream stream, uint64_t capture) {
  const bool message = static_cast<Op>(job.what & 0xff) == Op::send_recv;
  job.graph = message ? 0 : record_->count_kernel(capture);
  Grid grid = Kernels::grid_of(instance, job, size.blocks, size.threads);
  grid.urgent = order_.has_others();
  grid.early &=
      order_.before(stream, capture, footprint_of_kernel(size.blocks, instance.cluster_blocks),
                    grid.early && lets_next_start(job, size.blocks));
  Kernels::launch(instance, job, more, grid, stream);
  order_.after(stream, capture);
  if (stamps_) stamped_ = instance;
}

void Group::vendor(const Call& call, int id, CUstream stream, uint64_t capture) {
  const Algorithm& chosen = *natives_[static_cast<size_t>(id)].vendor;
  if (natives_[static_cast<size_t>(id)].ffi) return run_ffi(call, id, stream, capture);
  Call plain = call;
  if (has_arena() && !plan_.row(id).symmetric) {
    plain.in = arena_->as_plain(call.in);
    plain.out = arena_->as_plain(call.out);
  }
  order_.before(stream, capture, footprint_of_vendor(), false);
  deadline_.enter(call, chosen.name);
  try {
    chosen.run(*this, plain, stream);
  } catch (...) {
    deadline_.leave(false, stream);
    throw;
  }
  deadline_.leave(capture == 0, stream);
  order_.after(stream, capture);
}

void Group::message(const Call& call, int peer, bool sends, CUstream stream) {
  Call directed = call;
  (sends ? directed.root : directed.source) = peer;
  if (sends) {
    directed.out = nullptr;
  } else {
    directed.in = nullptr;
  }
  run(directed, call.bytes(), false, stream);
}

}  // namespace commlib::nccl
