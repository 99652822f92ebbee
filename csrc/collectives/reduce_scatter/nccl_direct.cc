// NCCL's reduce-scatter; blocks of different sizes go as one reduce each, in one group
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void reduce_scatter(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  check(nccl().ncclReduceScatter(call.in, call.out, as.count, as.type, as.op, group.comm(), stream),
        "ncclReduceScatter");
}

void reduce_scatterv(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  const Grouped grouped;
  const unsigned char* from = call.in;
  for (int r = 0; r < group.world(); ++r) {
    const auto count = static_cast<size_t>(call.in_counts[r]);
    if (count > 0) {
      check(nccl().ncclReduce(from, call.out, count * as.per_element, as.type, as.op, r,
                              group.comm(), stream),
            "ncclReduce");
    }
    from += count * call.element();
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(reduce_scatter, nccl_direct, reduce_scatter);
COMMLIB_NCCL_ALGORITHM(reduce_scatterv, nccl_direct, reduce_scatterv);

}  // namespace commlib::nccl
