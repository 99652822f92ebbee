// the root stages its tensor | the others copy it
//
// Layout: the root's tensor is cut into chunks. Requirements: none. Cost: the root writes n, each
// other rank reads n; one hand-over. The root runs ahead of its readers by up to kRing operations
// and kSlots chunks.
#include "collectives/broadcast/exchange.h"
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {

void broadcast_tensor(Group& group, const Call& call, bool offers) {
  const size_t bytes = call.bytes();
  const size_t chunk = std::min(group.chunk_bytes(), bytes);
  const auto length = [&](uint64_t step) { return std::min(chunk, bytes - step * chunk); };
  const bool is_root = group.rank() == call.root;
  run_staged(
      group, call, {steps_for(bytes, chunk), chunk, is_root, !is_root, is_root && offers, false},
      [&](uint64_t step, unsigned char* slot) { copy(slot, call.in + step * chunk, length(step)); },
      [&](uint64_t step, const Reader& reader) {
        const size_t first = step * chunk;
        copy(call.out + first, reader.read(call.root, step, 0, first, length(step)), length(step));
      });
}

namespace {

void broadcast_oneshot(Group& group, const Call& call) { broadcast_tensor(group, call, false); }

COMMLIB_SHM_ALGORITHM(broadcast, shm_oneshot, broadcast_oneshot);

}  // namespace
}  // namespace commlib::shm
