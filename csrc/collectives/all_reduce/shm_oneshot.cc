// stage my chunk | reduce everyone's chunk in rank order
//
// Layout: the tensor is cut into chunks. Requirements: none. Cost per rank: write n,
// read n from each peer; one hand-over. Best for small tensors.
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

void all_reduce_oneshot(Group& group, const Call& call) {
  const size_t bytes = call.bytes();
  const size_t chunk = std::min(group.chunk_bytes(), bytes);
  const auto length = [&](uint64_t step) { return std::min(chunk, bytes - step * chunk); };
  run_staged(
      group, call, {steps_for(bytes, chunk), chunk, true, true, false, true},
      [&](uint64_t step, unsigned char* slot) { copy(slot, call.in + step * chunk, length(step)); },
      [&](uint64_t step, const Reader& reader) {
        const size_t first = step * chunk;
        const void* sources[kMaxRanks];
        sources[group.rank()] = call.in + first;
        for_each_peer(group,
                      [&](int r) { sources[r] = reader.read(r, step, 0, first, length(step)); });
        group.reduce(call, call.out + first, sources, length(step) / call.element());
      });
}

COMMLIB_SHM_ALGORITHM(all_reduce, shm_oneshot, all_reduce_oneshot);

}  // namespace
}  // namespace commlib::shm
