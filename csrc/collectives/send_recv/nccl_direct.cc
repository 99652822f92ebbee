// NCCL's send, its receive, or both in one group: what is null does not take place
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void send_recv(Group& group, const Call& call, CUstream stream) {
  const Grouped grouped;
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

}  // namespace

COMMLIB_NCCL_ALGORITHM(send_recv, nccl_direct, send_recv);

}  // namespace commlib::nccl
