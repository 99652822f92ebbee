// stage my rows | add up everyone's row in rank order and take its norm, row by row
//
// Layout: a chunk is as many whole rows as fit. Requirements: none. Cost per rank: write n, read n
// from each peer, the norm of every row; one hand-over. Best where a hand-over costs more than
// that.
#include "shm/algorithm.h"
#include "shm/rows.h"
#include "shm/staged.h"

namespace commlib::shm {

void run_oneshot(Group& group, const Call& call) {
  Norms norms(group, call);
  const size_t row_bytes = norms.row_bytes();
  const size_t max_rows = std::max<size_t>(1, group.chunk_bytes() / row_bytes);
  const size_t rows = std::min(max_rows, norms.rows());  // of a chunk
  const auto count = [&](uint64_t step) { return std::min(rows, norms.rows() - step * rows); };
  run_staged(
      group, call, {steps_for(norms.rows(), rows), rows * row_bytes, true, true, false, true},
      [&](uint64_t step, unsigned char* slot) { norms.copy_in(slot, step * rows, count(step)); },
      [&](uint64_t step, const Reader& reader) {
        const void* of_ranks[kMaxRanks];
        for_each_peer(group, [&](int r) {
          of_ranks[r] = reader.read(r, step, 0, 0, count(step) * row_bytes);
        });
        for (size_t i = 0; i < count(step); ++i) {
          const size_t row = step * rows + i;
          const void* sources[kMaxRanks];
          sources[group.rank()] = norms.in(row);
          for_each_peer(group, [&](int r) {
            sources[r] = static_cast<const unsigned char*>(of_ranks[r]) + i * row_bytes;
          });
          norms.run(row, sources, group.world());
        }
      });
}

COMMLIB_SHM_ALGORITHM(all_reduce_rms_norm, shm_oneshot, run_oneshot);

}  // namespace commlib::shm
