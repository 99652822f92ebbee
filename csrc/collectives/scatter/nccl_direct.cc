// NCCL's sends of the root to all, who receive them, in one group
#include "nccl/algorithm.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void scatter(Group& group, const Call& call, CUstream stream) {
  const size_t block = call.bytes();
  const Grouped grouped;
  for (int r = 0; r < group.world() && group.rank() == call.root; ++r)
    send(group, call.in + r * block, block, r, stream);
  receive(group, call.out, block, call.root, stream);
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(scatter, nccl_direct, scatter);

}  // namespace commlib::nccl
