// NCCL's send or receive: `in` is what is sent, null where this rank receives; `root` is the peer
#include "nccl/algorithm.h"
#include "nccl/group.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void send_recv(Group& group, const Call& call, CUstream stream) {
  if (call.in) {
    check(nccl().ncclSend(call.in, call.bytes(), ncclInt8, call.root, group.comm(), stream),
          "ncclSend");
  } else {
    check(nccl().ncclRecv(call.out, call.bytes(), ncclInt8, call.root, group.comm(), stream),
          "ncclRecv");
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(send_recv, nccl_direct, send_recv);

}  // namespace commlib::nccl
