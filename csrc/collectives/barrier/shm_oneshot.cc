// say that I am here | wait until all have
//
// Cost: one hand-over.
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

void barrier_oneshot(Group& group, const Call& call) {
  group.begin(call);
  group.reserve_chunks(0, 0, true);
  group.publish();
  for_each_peer(group, [&](int r) { group.await_line(r); });
  group.finish(true);
}

COMMLIB_SHM_ALGORITHM(barrier, shm_oneshot, barrier_oneshot);

}  // namespace
}  // namespace commlib::shm
