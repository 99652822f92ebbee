// stage the parts the others reduce | reduce my part of everyone's chunk | copy the reduced parts
// of the others
//
// Layout: a chunk is cut into one part per rank; steps alternate between inputs (A) and reduced
// parts (B):
//   A0 A1 B0 A2 B1 A3 B2 ... B(n-1), so that staging runs one chunk ahead of reducing, and reducing
//   one ahead of copying.
// Requirements: none. Cost per rank: write n, read n(W-1)/W inputs and n(W-1)/W results; two
// hand-overs. Best from about 4 KiB on: a rank reduces its part alone.
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

class TwoShot {
 public:
  TwoShot(Group& group, const Call& call)
      : group_(group), call_(call), world_(group.world()), me_(group.rank()) {
    const size_t fits = group.chunk_bytes() / world_ / kCacheLine * kCacheLine;
    part_ = std::min(std::max(fits, kCacheLine),
                     round_up((call.bytes() + world_ - 1) / world_, kCacheLine));
    chunks_ = steps_for(call.bytes(), part_ * world_);
  }

  void run() {
    if (!group_.late()) group_.begin(call_);
    group_.reserve_chunks(2 * chunks_, part_ * world_, true);
    for (uint64_t k = 0; k < chunks_ + 2; ++k) {
      if (k < chunks_) stage(k);
      if (k >= 1 && k <= chunks_) reduce(k - 1);
      if (k >= 2) gather(k - 2);
    }
    group_.finish(true);
  }

 private:
  uint64_t input_step(uint64_t k) const { return k == 0 ? 0 : 2 * k - 1; }
  uint64_t result_step(uint64_t k) const { return k + 1 < chunks_ ? 2 * k + 2 : 2 * k + 1; }
  size_t first(uint64_t k, int r) const { return k * part_ * world_ + r * part_; }
  size_t length(uint64_t k, int r) const {
    const size_t start = first(k, r);
    return start >= call_.bytes() ? 0 : std::min(part_, call_.bytes() - start);
  }

  void stage(uint64_t k) {
    unsigned char* slot = group_.slot_to_fill(input_step(k));
    for_each_peer(group_,
                  [&](int r) { copy(slot + r * part_, call_.in + first(k, r), length(k, r)); });
    group_.post(input_step(k));
  }

  void reduce(uint64_t k) {
    const void* sources[kMaxRanks];
    sources[me_] = call_.in + first(k, me_);
    for_each_peer(group_,
                  [&](int r) { sources[r] = group_.await_step(r, input_step(k)) + me_ * part_; });
    unsigned char* slot = group_.slot_to_fill(result_step(k));
    const size_t bytes = length(k, me_);
    if (bytes > 0) group_.reduce(call_, slot, sources, bytes / call_.element());
    group_.consume(input_step(k));
    group_.post(result_step(k));
    copy(call_.out + first(k, me_), slot, bytes);
  }

  void gather(uint64_t k) {
    for_each_peer(group_, [&](int r) {
      const unsigned char* result = group_.await_step(r, result_step(k));
      copy(call_.out + first(k, r), result, length(k, r));
    });
    group_.consume(result_step(k));
  }

  Group& group_;
  const Call& call_;
  int world_;
  int me_;
  size_t part_;
  uint64_t chunks_;
};

void all_reduce_twoshot(Group& group, const Call& call) { TwoShot(group, call).run(); }

COMMLIB_SHM_ALGORITHM(all_reduce, shm_twoshot, all_reduce_twoshot);

}  // namespace
}  // namespace commlib::shm
