// say where my input is | copy my block of everyone's input from its arena | wait until all have
//
// Requirements: the input in the arena, equal blocks, and not in place (then it is staged). Cost
// per rank: read n(W-1)/W, no staging; two hand-overs.
#include "collectives/all_to_all/exchange.h"
#include "shm/algorithm.h"

namespace commlib::shm {
namespace {

void all_to_all_symmetric(Group& group, const Call& call) { all_to_all_blocks(group, call, true); }

COMMLIB_SHM_ALGORITHM(all_to_all, shm_symmetric, all_to_all_symmetric);

}  // namespace
}  // namespace commlib::shm
