// stage the blocks of the others | reduce my block of everyone's input in rank order
//
// Layout: a chunk holds one part of each rank's block; blocks may differ in size (v-variant).
// Requirements: none. Cost per rank: write n(W-1)/W, read n(W-1)/W; one hand-over.
#include "collectives/reduce_scatter/exchange.h"
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {

void reduce_scatter_blocks(Group& group, const Call& call, bool offers) {
  size_t start[kMaxRanks];
  size_t size[kMaxRanks];
  size_t longest = 0;
  size_t end = 0;
  for (int r = 0; r < group.world(); ++r) {
    size[r] =
        (call.in_counts ? static_cast<size_t>(call.in_counts[r]) : call.count) * call.element();
    start[r] = end;
    end += size[r];
    longest = std::max(longest, size[r]);
  }
  const int me = group.rank();
  const Parts parts(group, longest);
  run_staged(
      group, call, {parts.steps(longest), parts.slot_bytes(group), true, true, offers, true},
      [&](uint64_t step, unsigned char* slot) {
        for_each_peer(group, [&](int r) {
          copy(slot + r * parts.part_bytes, call.in + start[r] + step * parts.part_bytes,
               parts.bytes_in(step, size[r]));
        });
      },
      [&](uint64_t step, const Reader& reader) {
        const size_t first = step * parts.part_bytes;
        const size_t bytes = parts.bytes_in(step, size[me]);
        const void* sources[kMaxRanks];
        sources[me] = call.in + start[me] + first;
        for_each_peer(group, [&](int r) {
          sources[r] = reader.read(r, step, me * parts.part_bytes, start[me] + first, bytes);
        });
        if (bytes > 0) group.reduce(call, call.out + first, sources, bytes / call.element());
      });
}

namespace {

void reduce_scatter_oneshot(Group& group, const Call& call) {
  reduce_scatter_blocks(group, call, false);
}

COMMLIB_SHM_ALGORITHM(reduce_scatter, shm_oneshot, reduce_scatter_oneshot);
COMMLIB_SHM_ALGORITHM(reduce_scatterv, shm_oneshot, reduce_scatter_oneshot);

}  // namespace
}  // namespace commlib::shm
