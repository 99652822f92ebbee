// Moves by the copy engines: each rank reads what is its own from where it lies at the peers, so
// that nobody writes another's tensor, whatever happens.
#include "nccl/call_words.h"
#include "nccl/group.h"
#include "nccl/moves.h"

namespace commlib::nccl {
namespace {

// Where the input of each rank lies in its arena: where this rank's does or, in place, in a tensor
// that begins where this rank's does.
Reads reads_of(const Call& call, const Moves& mine, u64 own, int rank, int world) {
  Reads reads{};
  const bool in_place = call.in == call.out + mine.take_at[rank];
  for (int r = 0; r < world; ++r)
    reads.in_at[r] = in_place ? own + mine.take_at[r] - mine.take_at[rank] : own;
  return reads;
}

}  // namespace

void Group::pull(const Call& call, const Choice& choice, CUstream stream, uint64_t capture) {
  constexpr unsigned kThreads = 32;
  const Moves mine = moves_of(call, rank_, world_);
  const auto own = static_cast<u64>(arena_->offset_of(call.in, 1));
  Reads reads = reads_of(call, mine, own, rank_, world_);
  const auto& instance =
      kernels_.get(natives_[static_cast<size_t>(choice.algorithm)].kernel, call.dtype, call.redop);
  Job job = job_;
  job.bytes = call.bytes();
  job.what = pack(call, choice.algorithm, inner_);
  job.signature = Signature(job.what, job.bytes, call.detail).bits();
  job.graph = record_->count_kernel(capture);
  const Grid warp = {1, kThreads, 0, false, order_.has_others()};
  order_.before(stream, capture, footprint_of_kernel(1, 1), false);
  reads.turn = Turn::ready;
  Kernels::launch(instance, job, &reads, warp, stream);
  engine_.copy(copies_of(call, mine, reads), stream, capture);
  reads.turn = Turn::read;
  Kernels::launch(instance, job, &reads, warp, stream);
  order_.after(stream, capture);
}

// The next rank's first, so that no rank is read by all at once; this rank's own block last, which
// the driver copies by a kernel of its own.
Copies Group::copies_of(const Call& call, const Moves& mine, const Reads& reads) const {
  Copies copies;
  for (int i = 1; i <= world_ - call.own_stays; ++i) {
    const int r = (rank_ + i) % world_;
    const unsigned char* in = r == rank_ ? call.in : arena_->peer(r) + reads.in_at[r];
    copies.add({call.out + mine.take_at[r], in + moves_of(call, r, world_).send_at[rank_],
                mine.take_bytes[r]});
  }
  return copies;
}

}  // namespace commlib::nccl
