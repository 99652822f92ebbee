// NCCL's sends and receives in one group; what is null does not take place
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void one(Group& group, const Call& call, CUstream stream) {
  if (call.in) {
    check(nccl().ncclSend(call.in, call.bytes(), ncclInt8, call.root, group.comm(), stream),
          "ncclSend");
  }
  if (call.out) {
    const size_t bytes = call.out_counts ? static_cast<size_t>(*call.out_counts) : call.bytes();
    check(nccl().ncclRecv(call.out, bytes, ncclInt8, call.source, group.comm(), stream),
          "ncclRecv");
  }
}

void send_recv(Group& group, const Call& call, CUstream stream) {
  const Grouped grouped;
  if (!call.parts) return one(group, call, stream);
  for (const Call& part : *call.parts) one(group, part, stream);
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(send_recv, nccl_direct, send_recv);

}  // namespace commlib::nccl
