// NCCL's all-reduce of a few bytes nobody reads
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void barrier(Group& group, const Call&, CUstream stream) {
  unsigned char* word = group.scratch();
  check(nccl().ncclAllReduce(word, word, 1, ncclInt32, ncclSum, group.comm(), stream),
        "ncclAllReduce");
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(barrier, nccl_direct, barrier);

}  // namespace commlib::nccl
