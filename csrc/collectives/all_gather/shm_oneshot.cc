// stage my block | copy everyone's block to its place
//
// Layout: the rank's block is cut into chunks; blocks may differ in size (v-variant), a
// shorter one has empty chunks at its end. Requirements: none. Cost per rank: write n/W, read n;
// one hand-over.
#include "collectives/all_gather/exchange.h"
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {

void all_gather_blocks(Group& group, const Call& call, bool offers) {
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
  const size_t chunk = std::min(group.chunk_bytes(), longest);
  const auto length = [&](uint64_t step, int r) {
    return step * chunk >= size[r] ? 0 : std::min(chunk, size[r] - step * chunk);
  };
  run_staged(
      group, call,
      {steps_for(longest, chunk), chunk, true, true, offers, true, !offers && group.pulls(call)},
      [&](uint64_t step, unsigned char* slot) {
        copy(slot, call.in + step * chunk, length(step, me));
      },
      [&](uint64_t step, const Reader& reader) {
        const size_t first = step * chunk;
        for_each_peer(group, [&](int r) {
          const size_t bytes = length(step, r);
          reader.copy(call.out + start[r] + first, r, step, 0, first, bytes);
        });
        copy(call.out + start[me] + first, call.in + first, length(step, me));
      });
}

namespace {

void all_gather_oneshot(Group& group, const Call& call) { all_gather_blocks(group, call, false); }

COMMLIB_SHM_ALGORITHM(all_gather, shm_oneshot, all_gather_oneshot);
COMMLIB_SHM_ALGORITHM(all_gatherv, shm_oneshot, all_gather_oneshot);

}  // namespace
}  // namespace commlib::shm
