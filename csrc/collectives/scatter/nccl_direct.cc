// NCCL's sends of the root to all, who receive them, in one group
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void scatter(Group& group, const Call& call, CUstream stream) {
  const size_t block = call.bytes();
  const Grouped grouped;
  for (int r = 0; r < group.world() && group.rank() == call.root; ++r) {
    check(nccl().ncclSend(call.in + r * block, block, ncclInt8, r, group.comm(), stream),
          "ncclSend");
  }
  check(nccl().ncclRecv(call.out, block, ncclInt8, call.root, group.comm(), stream), "ncclRecv");
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(scatter, nccl_direct, scatter);

}  // namespace commlib::nccl
