// stage the blocks of the others | copy my block of everyone's input
//
// Layout: a chunk holds one part of each rank's block. In the v-variant a rank knows only its own
// sizes, so `count` is the longest block of all ranks (agreed beforehand). Requirements: none. Cost
// per rank: write n(W-1)/W, read n(W-1)/W; one hand-over. In place: block r is staged before it is
// overwritten, part by part.
#include "collectives/all_to_all/exchange.h"
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

struct Blocks {
  size_t start[kMaxRanks];
  size_t size[kMaxRanks];
  Blocks(const Group& group, const Call& call, const int64_t* counts) {
    size_t end = 0;
    for (int r = 0; r < group.world(); ++r) {
      size[r] = (counts ? static_cast<size_t>(counts[r]) : call.count) * call.element();
      start[r] = end;
      end += size[r];
    }
  }
};

}  // namespace

void all_to_all_blocks(Group& group, const Call& call, bool offers) {
  const Blocks in(group, call, call.in_counts);
  const Blocks out(group, call, call.out_counts);
  const int me = group.rank();
  const size_t longest = call.bytes();
  const Parts parts(group, longest);
  const bool apart = call.in != call.out;
  run_staged(
      group, call,
      {parts.steps(longest), parts.slot_bytes(group), true, true, apart && offers, true,
       apart && !offers && group.pulls(call)},
      [&](uint64_t step, unsigned char* slot) {
        for_each_peer(group, [&](int r) {
          const size_t bytes = parts.bytes_in(step, in.size[r]);
          copy(slot + r * parts.part_bytes, call.in + in.start[r] + step * parts.part_bytes, bytes);
        });
      },
      [&](uint64_t step, const Reader& reader) {
        const size_t first = step * parts.part_bytes;
        for_each_peer(group, [&](int r) {
          const size_t bytes = parts.bytes_in(step, out.size[r]);
          const size_t start = call.in_starts ? call.in_starts[r] * call.element() : me * longest;
          reader.copy(call.out + out.start[r] + first, r, step, me * parts.part_bytes,
                      start + first, bytes);
        });
        copy(call.out + out.start[me] + first, call.in + in.start[me] + first,
             parts.bytes_in(step, in.size[me]));
      });
}

namespace {

void all_to_all_oneshot(Group& group, const Call& call) { all_to_all_blocks(group, call, false); }

COMMLIB_SHM_ALGORITHM(all_to_all, shm_oneshot, all_to_all_oneshot);
COMMLIB_SHM_ALGORITHM(all_to_allv, shm_oneshot, all_to_all_oneshot);

}  // namespace
}  // namespace commlib::shm
