// the others stage their tensors | the root reduces them in rank order
//
// Layout: a tensor is cut into chunks. Requirements: none; the tensors of the other ranks stay as
// they are. Cost: each other rank writes n, the root reads n from each; one hand-over.
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

void reduce_oneshot(Group& group, const Call& call) {
  const size_t bytes = call.bytes();
  const size_t chunk = std::min(group.chunk_bytes(), bytes);
  const auto length = [&](uint64_t step) { return std::min(chunk, bytes - step * chunk); };
  const bool is_root = group.rank() == call.root;
  run_staged(
      group, call, {steps_for(bytes, chunk), chunk, !is_root, is_root, false, false},
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

COMMLIB_SHM_ALGORITHM(reduce, shm_oneshot, reduce_oneshot);

}  // namespace
}  // namespace commlib::shm
