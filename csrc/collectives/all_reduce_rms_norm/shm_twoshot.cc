// stage the rows that others own | reduce my rows of everyone's chunk and take their norm | copy
// the results of the others
//
// Layout: a chunk has as many rows of each rank's own; steps alternate between inputs (A) and
// results (B) as in all_reduce's shm_twoshot: A0 A1 B0 A2 B1 … B(n-1). A result is the rows of the
// sum with the residual, those of y, and found scales. Requirements: none. Cost per rank: write n,
// the norm of n/W, read inputs of n(W-1)/W and results of as many rows; two hand-overs.
#include <array>

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
        row_bytes_(norms_.row_bytes()),
        sum_(new unsigned char[row_bytes_]) {
    const size_t of_rank = (norms_.rows() + world_ - 1) / world_;
    part_ = std::clamp<size_t>(group.chunk_bytes() / world_ / row_bytes_, 1, of_rank);
    chunks_ = steps_for(of_rank, part_);
  }

  void run() {
    if (slot_bytes() > kMaxChunkBytes) return run_composed(group_, call_);  // wide rows, many ranks
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
  struct Piece {
    NormField field;
    size_t bytes;  // of a row
  };
  // What a result has of each row.
  std::array<Piece, 3> pieces() const {
    const NormCall& norm = norms_.norm();
    return {
        {{kSum, row_bytes_}, {kY, norm.y_bytes(call_.dtype)}, {kFoundScale, norm.scale_bytes()}}};
  }
  size_t result_bytes() const {
    size_t bytes = 0;
    for (const Piece& piece : pieces()) bytes += piece.bytes;
    return bytes;
  }
  size_t slot_bytes() const { return part_ * std::max(world_ * row_bytes_, result_bytes()); }
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
    const unsigned char* theirs[kMaxRanks];
    for_each_peer(group_, [&](int r) {
      theirs[r] = group_.await_step(r, input_step(k)) + me_ * part_ * row_bytes_;
    });
    unsigned char* slot = group_.slot_to_fill(result_step(k));
    for (size_t i = 0; i < count(k, me_); ++i) {
      const size_t row = first(k, me_) + i;
      const void* sources[kMaxRanks];
      sources[me_] = norms_.in(row);
      for_each_peer(group_, [&](int r) { sources[r] = theirs[r] + i * row_bytes_; });
      group_.reduce(call_, sum_.get(), sources, row_bytes_ / call_.element());
      norms_.run(row, sum_.get());
    }
    each_row(k, me_, [&](unsigned char* field, size_t at, size_t bytes) {
      std::memcpy(slot + at, field, bytes);
    });
    group_.consume(input_step(k));
    group_.post(result_step(k));
  }

  void gather(uint64_t k) {
    for_each_peer(group_, [&](int r) {
      const unsigned char* slot = group_.await_step(r, result_step(k));
      each_row(k, r, [&](unsigned char* field, size_t at, size_t bytes) {
        std::memcpy(field, slot + at, bytes);
      });
    });
    group_.consume(result_step(k));
  }

  // Calls visit(field of the row, where a result has it, bytes) for the rows of rank r in chunk k.
  template <class Visit>
  void each_row(uint64_t k, int r, Visit visit) const {
    size_t at = 0;
    for (const Piece& piece : pieces()) {
      for (size_t i = 0; i < count(k, r) && piece.bytes > 0; ++i, at += piece.bytes)
        visit(call_.rows->field(piece.field, first(k, r) + i), at, piece.bytes);
    }
  }

  Group& group_;
  const Call& call_;
  Norms norms_;
  int world_;
  int me_;
  size_t row_bytes_;
  std::unique_ptr<unsigned char[]> sum_;
  size_t part_;  // rows of each rank in a chunk
  uint64_t chunks_;
};

void twoshot(Group& group, const Call& call) { TwoShot(group, call).run(); }

COMMLIB_SHM_ALGORITHM(all_reduce_rms_norm, shm_twoshot, twoshot);

}  // namespace
}  // namespace commlib::shm
