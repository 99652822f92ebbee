// the root stages one part for each rank, or shows where its tensor is | each rank copies its own
//
// Layout: a chunk of the root's holds one part of each rank's block. Requirements: none.
// Cost: staged, the root writes n and each other rank reads n/W; shown, each rank copies n/W; one
// hand-over.
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

void scatter_oneshot(Group& group, const Call& call) {
  const size_t bytes = call.bytes();
  const Parts parts(group, bytes);
  const int me = group.rank();
  const bool is_root = me == call.root;
  run_staged(
      group, call,
      {parts.steps(bytes), parts.slot_bytes(group), is_root, true, false, false,
       is_root && group.pulls(call)},
      [&](uint64_t step, unsigned char* slot) {
        const size_t first = step * parts.part_bytes;
        const size_t length = parts.bytes_in(step, bytes);
        for_each_peer(group, [&](int r) {
          copy(slot + r * parts.part_bytes, call.in + r * bytes + first, length);
        });
      },
      [&](uint64_t step, const Reader& reader) {
        const size_t first = step * parts.part_bytes;
        const size_t length = parts.bytes_in(step, bytes);
        if (is_root) {
          copy(call.out + first, call.in + me * bytes + first, length);
        } else {
          reader.copy(call.out + first, call.root, step, me * parts.part_bytes, me * bytes + first,
                      length);
        }
      });
}

COMMLIB_SHM_ALGORITHM(scatter, shm_oneshot, scatter_oneshot);

}  // namespace
}  // namespace commlib::shm
