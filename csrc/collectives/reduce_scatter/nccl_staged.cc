// copy into symmetric memory | NCCL's symmetric kernel there | copy out; piece by piece
//
// As nccl_staged of all_reduce: the copies are the driver's, so that NCCL's kernel cannot start
// before what it reads is written. A half of the staging memory holds a piece of every rank's block
// and one more, each at whole vectors: NCCL 2.28.9's symmetric kernel is wrong on odd blocks.
#include "nccl/algorithm.h"
#include "nccl/pieces.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

constexpr size_t kSymmetricVector = 16;

void reduce_scatter(Group& group, const Call& call, CUstream stream) {
  const Reduction as(call);
  const size_t unit = call.element() / as.per_element;
  const Pieces pieces(group, call.bytes(), group.world() + 1);
  for (size_t i = 0; i < pieces.count(); ++i) {
    const size_t at = pieces.at(i), bytes = pieces.bytes(i);
    unsigned char* own = pieces.half(i);
    unsigned char* all = own + pieces.stride();
    const size_t padded = (bytes + kSymmetricVector - 1) / kSymmetricVector * kSymmetricVector;
    for (int r = 0; r < group.world(); ++r)
      pieces.copy(all + r * padded, call.in + r * call.bytes() + at, bytes, stream);
    check(nccl().ncclReduceScatter(all, own, padded / unit, as.type, as.op, group.comm(), stream),
          "ncclReduceScatter");
    pieces.copy(call.out + at, own, bytes, stream);
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(reduce_scatter, nccl_staged, reduce_scatter);

}  // namespace commlib::nccl
