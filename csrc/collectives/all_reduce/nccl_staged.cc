// copy into symmetric memory | NCCL's symmetric kernel there | copy out; piece by piece
//
// NCCL 2.28.3 to 2.30.4 launch these kernels so that they may start before the one ahead has
// flushed what it wrote. Here that is a copy by the driver, which ends before anything behind it
// starts, and the caller's own kernels lie ahead of the copy. Pieces take turns in two halves.
#include "nccl/algorithm.h"
#include "nccl/pieces.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void all_reduce(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  const size_t unit = call.element() / as.per_element;
  const Pieces pieces(group, call.bytes(), 1);
  for (size_t i = 0; i < pieces.count(); ++i) {
    const size_t at = pieces.at(i), bytes = pieces.bytes(i);
    unsigned char* half = pieces.half(i);
    pieces.copy(half, call.in + at, bytes, stream);
    check(nccl().ncclAllReduce(half, half, bytes / unit, as.type, as.op, group.comm(), stream),
          "ncclAllReduce");
    pieces.copy(call.out + at, half, bytes, stream);
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(all_reduce, nccl_staged, all_reduce);

}  // namespace commlib::nccl
