// NCCL's sends of all to the root, which receives them, in one group
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void gather(Group& group, const Call& call, CUstream stream) {
  const size_t block = call.bytes();
  const Grouped grouped;
  check(nccl().ncclSend(call.in, block, ncclInt8, call.root, group.comm(), stream), "ncclSend");
  if (group.rank() != call.root) return;
  for (int r = 0; r < group.world(); ++r) {
    check(nccl().ncclRecv(call.out + r * block, block, ncclInt8, r, group.comm(), stream),
          "ncclRecv");
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(gather, nccl_direct, gather);

}  // namespace commlib::nccl
