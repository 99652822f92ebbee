// copy into symmetric memory | NCCL's symmetric kernel there | copy out; piece by piece
//
// As nccl_staged of all_reduce: the copies are the driver's, so that NCCL's kernel cannot start
// before what it reads is written. A half of the staging memory holds a piece of every rank's block
// and one more.
#include "nccl/algorithm.h"
#include "nccl/pieces.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void all_gather(Group& group, const Call& call, CUstream stream) {
  const Pieces pieces(group, call.bytes(), group.world() + 1);
  for (size_t i = 0; i < pieces.count(); ++i) {
    const size_t at = pieces.at(i), bytes = pieces.bytes(i);
    unsigned char* own = pieces.half(i);
    unsigned char* all = own + pieces.stride();
    pieces.copy(own, call.in + at, bytes, stream);
    check(nccl().ncclAllGather(own, all, bytes, ncclInt8, group.comm(), stream), "ncclAllGather");
    for (int r = 0; r < group.world(); ++r)
      pieces.copy(call.out + r * call.bytes() + at, all + r * bytes, bytes, stream);
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(all_gather, nccl_staged, all_gather);

}  // namespace commlib::nccl
