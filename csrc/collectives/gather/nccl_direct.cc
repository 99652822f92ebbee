// NCCL's sends of all to the root, which receives them, in one group
#include "nccl/algorithm.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void gather(Group& group, const Call& call, CUstream stream) {
  const size_t block = call.bytes();
  const Grouped grouped;
  send(group, call.in, block, call.root, stream);
  if (group.rank() != call.root) return;
  for (int r = 0; r < group.world(); ++r) receive(group, call.out + r * block, block, r, stream);
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(gather, nccl_direct, gather);

}  // namespace commlib::nccl
