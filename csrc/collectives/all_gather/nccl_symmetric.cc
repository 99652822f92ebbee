// NCCL's symmetric kernels on tensors that lie in the arena, at the same place on every rank
//
// From NCCL 2.30.7 on: older ones may read a tensor before the kernel that writes it is done.
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void all_gather(Group& group, const Call& call, CUstream stream) {
  require_safe_symmetric_kernels();
  check(nccl().ncclAllGather(call.in, call.out, call.bytes(), ncclInt8, group.comm(), stream),
        "ncclAllGather");
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(all_gather, nccl_symmetric, all_gather);

}  // namespace commlib::nccl
