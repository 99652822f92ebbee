// NCCL's symmetric kernels on tensors that lie in the arena, at the same place on every rank
//
// From NCCL 2.30.7 on: older ones may read a tensor before the kernel that writes it is done.
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void all_reduce(Group& group, const Call& call, CUstream stream) {
  require_safe_symmetric_kernels();
  const Reduction as(call);
  check(nccl().ncclAllReduce(call.in, call.out, as.count, as.type, as.op, group.comm(), stream),
        "ncclAllReduce");
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(all_reduce, nccl_symmetric, all_reduce);

}  // namespace commlib::nccl
