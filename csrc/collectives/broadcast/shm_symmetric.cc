// the root says where its tensor is | the others copy it from there | the root waits until all have
//
// Requirements: the root's tensor in its arena; where the others' lie does not matter. Cost: each
// other rank reads n; two hand-overs.
#include "collectives/broadcast/exchange.h"
#include "shm/algorithm.h"

namespace commlib::shm {
namespace {

void broadcast_symmetric(Group& group, const Call& call) { broadcast_tensor(group, call, true); }

COMMLIB_SHM_ALGORITHM(broadcast, shm_symmetric, broadcast_symmetric);

}  // namespace
}  // namespace commlib::shm
