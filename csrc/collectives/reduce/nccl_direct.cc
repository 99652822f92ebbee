// NCCL's reduce; ranks other than the root keep their tensors
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void reduce(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  check(nccl().ncclReduce(call.in, call.out, as.count, as.type, as.op, call.root, group.comm(),
                          stream),
        "ncclReduce");
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(reduce, nccl_direct, reduce);

}  // namespace commlib::nccl
