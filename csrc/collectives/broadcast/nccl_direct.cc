// NCCL's broadcast, in place
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void broadcast(Group& group, const Call& call, CUstream stream) {
  check(nccl().ncclBroadcast(call.in, call.out, call.bytes(), ncclInt8, call.root, group.comm(),
                             stream),
        "ncclBroadcast");
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(broadcast, nccl_direct, broadcast);

}  // namespace commlib::nccl
