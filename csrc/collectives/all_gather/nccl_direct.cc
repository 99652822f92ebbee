// NCCL's all-gather; blocks of different sizes go as one broadcast each, in one group
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void all_gather(Group& group, const Call& call, CUstream stream) {
  check(nccl().ncclAllGather(call.in, call.out, call.bytes(), ncclInt8, group.comm(), stream),
        "ncclAllGather");
}

void all_gatherv(Group& group, const Call& call, CUstream stream) {
  const Grouped grouped;
  unsigned char* to = call.out;
  for (int r = 0; r < group.world(); ++r) {
    const size_t bytes = static_cast<size_t>(call.in_counts[r]) * call.element();
    if (bytes > 0) {
      const void* from = r == group.rank() ? call.in : to;
      check(nccl().ncclBroadcast(from, to, bytes, ncclInt8, r, group.comm(), stream),
            "ncclBroadcast");
    }
    to += bytes;
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(all_gather, nccl_direct, all_gather);
COMMLIB_NCCL_ALGORITHM(all_gatherv, nccl_direct, all_gatherv);

}  // namespace commlib::nccl
