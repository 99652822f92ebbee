// NCCL's reduce-scatter; blocks of different sizes go as one reduce each, in one group
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void blocks(Group& group, const Call& call, const Reduction& as, const int64_t* counts,
            CUstream stream) {
  const Grouped grouped;
  const unsigned char* from = call.in;
  for (int r = 0; r < group.world(); ++r) {
    const size_t count = counts ? static_cast<size_t>(counts[r]) : call.count;
    if (count > 0) {
      check(nccl().ncclReduce(from, call.out, count * as.per_element, as.type, as.op, r,
                              group.comm(), stream),
            "ncclReduce");
    }
    from += count * call.element();
  }
}

void reduce_scatter(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  const bool symmetric = group.has_arena() && group.arena().offset_of(call.in, 1) >= 0;
  if (symmetric && !symmetric_kernels_wait() && call.bytes() % kSymmetricVector != 0)
    return blocks(group, call, as, nullptr, stream);
  check(nccl().ncclReduceScatter(call.in, call.out, as.count, as.type, as.op, group.comm(), stream),
        "ncclReduceScatter");
}

void reduce_scatterv(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  blocks(group, call, as, call.in_counts, stream);
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(reduce_scatter, nccl_direct, reduce_scatter);
COMMLIB_NCCL_ALGORITHM(reduce_scatterv, nccl_direct, reduce_scatterv);

}  // namespace commlib::nccl
