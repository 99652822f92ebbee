// NCCL's sends and receives between all pairs, in one group
#include "nccl/algorithm.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void exchange(Group& group, const unsigned char* in, const size_t* give, unsigned char* out,
              const size_t* take, CUstream stream) {
  const Grouped grouped;
  for (int r = 0; r < group.world(); ++r) {
    if (give[r] > 0) send(group, in, give[r], r, stream);
    if (take[r] > 0) receive(group, out, take[r], r, stream);
    in += give[r];
    out += take[r];
  }
}

void all_to_all(Group& group, const Call& call, CUstream stream) {
  if (call.in == call.out)
    fail("Unsupported", "all_to_all in place by nccl_direct: NCCL has none; pass another out");
  size_t blocks[kMaxRanks];
  for (int r = 0; r < group.world(); ++r) blocks[r] = call.bytes();
  exchange(group, call.in, blocks, call.out, blocks, stream);
}

void all_to_allv(Group& group, const Call& call, CUstream stream) {
  size_t give[kMaxRanks], take[kMaxRanks];
  for (int r = 0; r < group.world(); ++r) {
    give[r] = static_cast<size_t>(call.in_counts[r]) * call.element();
    take[r] = static_cast<size_t>(call.out_counts[r]) * call.element();
  }
  exchange(group, call.in, give, call.out, take, stream);
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(all_to_all, nccl_direct, all_to_all);
COMMLIB_NCCL_ALGORITHM(all_to_allv, nccl_direct, all_to_allv);

}  // namespace commlib::nccl
