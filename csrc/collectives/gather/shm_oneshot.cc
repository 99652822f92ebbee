// the others stage their blocks | the root copies each to its place
//
// Layout: a block is cut into chunks. Requirements: none. Cost: each other rank writes n/W, the
// root reads n; one hand-over.
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

void gather_oneshot(Group& group, const Call& call) {
  const size_t bytes = call.bytes();
  const size_t chunk = std::min(group.chunk_bytes(), bytes);
  const auto length = [&](uint64_t step) { return std::min(chunk, bytes - step * chunk); };
  const bool is_root = group.rank() == call.root;
  run_staged(
      group, call, {steps_for(bytes, chunk), chunk, !is_root, is_root, false, false},
      [&](uint64_t step, unsigned char* slot) { copy(slot, call.in + step * chunk, length(step)); },
      [&](uint64_t step, const Reader& reader) {
        const size_t first = step * chunk;
        for_each_peer(group, [&](int r) {
          copy(call.out + r * bytes + first, reader.read(r, step, 0, first, length(step)),
               length(step));
        });
        copy(call.out + call.root * bytes + first, call.in + first, length(step));
      });
}

COMMLIB_SHM_ALGORITHM(gather, shm_oneshot, gather_oneshot);

}  // namespace
}  // namespace commlib::shm
