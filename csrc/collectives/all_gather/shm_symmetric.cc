// say where my block is | copy everyone's block from its arena | wait until all have
//
// Requirements: the input in the arena (ranks whose input is not are read from their staging). Cost
// per rank: read n, no staging; two hand-overs.
#include "collectives/all_gather/exchange.h"
#include "shm/algorithm.h"

namespace commlib::shm {
namespace {

void all_gather_symmetric(Group& group, const Call& call) { all_gather_blocks(group, call, true); }

COMMLIB_SHM_ALGORITHM(all_gather, shm_symmetric, all_gather_symmetric);
COMMLIB_SHM_ALGORITHM(all_gatherv, shm_symmetric, all_gather_symmetric);

}  // namespace
}  // namespace commlib::shm
