// copy into symmetric memory | NCCL's symmetric kernel there | copy out; piece by piece
//
// NCCL 2.28.3 to 2.30.4 launch these kernels so that they may start before the one ahead has
// flushed what it wrote. Here that is a copy by the driver, which ends before anything behind it
// starts, and the caller's own kernels lie ahead of the copy. Pieces take turns in two halves.
#include <algorithm>

#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void all_reduce(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  const size_t unit = call.element() / as.per_element, bytes = call.bytes();
  constexpr size_t kHalf = Group::kStagedBytes / 2;
  for (size_t at = 0, turn = 0; at < bytes; at += kHalf, ++turn) {
    const size_t piece = std::min(kHalf, bytes - at);
    unsigned char* half = group.staged() + turn % 2 * kHalf;
    check(
        cuda().cuMemcpyDtoDAsync(device_pointer(half), device_pointer(call.in + at), piece, stream),
        "cuMemcpyDtoDAsync");
    check(nccl().ncclAllReduce(half, half, piece / unit, as.type, as.op, group.comm(), stream),
          "ncclAllReduce");
    check(cuda().cuMemcpyDtoDAsync(device_pointer(call.out + at), device_pointer(half), piece,
                                   stream),
          "cuMemcpyDtoDAsync");
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(all_reduce, nccl_staged, false, all_reduce);

}  // namespace commlib::nccl
