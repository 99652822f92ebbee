// stage the rows that others own | add up my rows of everyone's chunk | take the norm of all rows
//
// Layout: a chunk has as many rows of each rank's own; steps alternate between inputs (A) and
// results (B) as in all_reduce's shm_twoshot: A0 A1 B0 A2 B1 … B(n-1). A result is the rows of the
// sum with the residual, and what the norm of each subtracts and multiplies by: from these, each
// rank computes y itself, which is less to move than y. Requirements: none. Cost per rank: write n,
// read inputs of n(W-1)/W and results of as much; two hand-overs.
#include "shm/algorithm.h"
#include "shm/rows.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

class TwoShot {
 public:
  TwoShot(Group& group, const Call& call)
      : group_(group),
        call_(call),
        norms_(group, call),
        world_(group.world()),
        me_(group.rank()),
        row_bytes_(norms_.row_bytes()) {
    const size_t of_rank = (norms_.rows() + world_ - 1) / world_;
    part_ = std::clamp<size_t>(group.chunk_bytes() / world_ / row_bytes_, 1, of_rank);
    chunks_ = steps_for(of_rank, part_);
  }

  void run() {
    const bool few = norms_.rows() < static_cast<size_t>(world_);  // some would have no work
    if (few && world_ == 2) return run_oneshot(group_, call_);     // which moves no more there
    if (few || slot_bytes() > kMaxChunkBytes) return run_composed(group_, call_);
    group_.begin(call_);
    group_.reserve_chunks(2 * chunks_, slot_bytes(), true);
    for (uint64_t k = 0; k < chunks_ + 2; ++k) {
      if (k < chunks_) stage(k);
      if (k >= 1 && k <= chunks_) reduce(k - 1);
      if (k >= 2) gather(k - 2);
    }
    group_.finish(true);
  }

 private:
  // Of inputs; a result takes no more: its rows are at least as long as what is computed of them.
  size_t slot_bytes() const { return part_ * world_ * row_bytes_; }
  uint64_t input_step(uint64_t k) const { return k == 0 ? 0 : 2 * k - 1; }
  uint64_t result_step(uint64_t k) const { return k + 1 < chunks_ ? 2 * k + 2 : 2 * k + 1; }
  size_t first(uint64_t k, int r) const { return (k * world_ + static_cast<size_t>(r)) * part_; }
  size_t count(uint64_t k, int r) const {
    return first(k, r) >= norms_.rows() ? 0 : std::min(part_, norms_.rows() - first(k, r));
  }

  void stage(uint64_t k) {
    unsigned char* slot = group_.slot_to_fill(input_step(k));
    for_each_peer(group_, [&](int r) {
      norms_.copy_in(slot + r * part_ * row_bytes_, first(k, r), count(k, r));
    });
    group_.post(input_step(k));
  }

  void reduce(uint64_t k) {
    const unsigned char* of_ranks[kMaxRanks];
    for_each_peer(group_, [&](int r) {
      of_ranks[r] = group_.await_step(r, input_step(k)) + me_ * part_ * row_bytes_;
    });
    unsigned char* slot = group_.slot_to_fill(result_step(k));
    auto* norms = reinterpret_cast<RowNorm*>(slot + part_ * row_bytes_);  // behind the rows
    for (size_t i = 0; i < count(k, me_); ++i) {
      const size_t row = first(k, me_) + i;
      const void* sources[kMaxRanks];
      sources[me_] = norms_.in(row);
      for_each_peer(group_, [&](int r) { sources[r] = of_ranks[r] + i * row_bytes_; });
      norms[i] = norms_.add(row, sources, world_, slot + i * row_bytes_);
    }
    group_.consume(input_step(k));
    group_.post(result_step(k));
    finish(k, me_, slot);
  }

  void gather(uint64_t k) {
    for_each_peer(group_, [&](int r) { finish(k, r, group_.await_step(r, result_step(k))); });
    group_.consume(result_step(k));
  }

  void finish(uint64_t k, int r, const unsigned char* slot) {
    const auto* norms = reinterpret_cast<const RowNorm*>(slot + part_ * row_bytes_);
    for (size_t i = 0; i < count(k, r); ++i)
      norms_.finish(first(k, r) + i, slot + i * row_bytes_, norms[i]);
  }

  Group& group_;
  const Call& call_;
  Norms norms_;
  int world_;
  int me_;
  size_t row_bytes_;
  size_t part_;  // rows of each rank in a chunk
  uint64_t chunks_;
};

void twoshot(Group& group, const Call& call) { TwoShot(group, call).run(); }

COMMLIB_SHM_ALGORITHM(all_reduce_rms_norm, shm_twoshot, twoshot);

}  // namespace
}  // namespace commlib::shm
