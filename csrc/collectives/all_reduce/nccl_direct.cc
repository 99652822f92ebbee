// NCCL's all-reduce on the caller's tensors: NCCL chooses ring, tree or LL by itself
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void all_reduce(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  check(nccl().ncclAllReduce(call.in, call.out, as.count, as.type, as.op, group.comm(), stream),
        "ncclAllReduce");
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(all_reduce, nccl_direct, all_reduce);

}  // namespace commlib::nccl
