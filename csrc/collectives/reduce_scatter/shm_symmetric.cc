// say where my input is | reduce my block of everyone's input from its arena | wait until all have
//
// Requirements: the input in the arena (ranks whose input is not are read from their staging). Cost
// per rank: read n(W-1)/W, no staging; two hand-overs. In place: a rank overwrites only the block
// nobody else reads.
#include "collectives/reduce_scatter/exchange.h"
#include "shm/algorithm.h"

namespace commlib::shm {
namespace {

void reduce_scatter_symmetric(Group& group, const Call& call) {
  reduce_scatter_blocks(group, call, true);
}

COMMLIB_SHM_ALGORITHM(reduce_scatter, shm_symmetric, reduce_scatter_symmetric);
COMMLIB_SHM_ALGORITHM(reduce_scatterv, shm_symmetric, reduce_scatter_symmetric);

}  // namespace
}  // namespace commlib::shm
