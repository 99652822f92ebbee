// NCCL's send, its receive, or both in one group: what is null does not take place
#include "nccl/algorithm.h"
#include "nccl/vendor.h"

namespace commlib::nccl {
namespace {

void send_recv(Group& group, const Call& call, CUstream stream) {
  const Grouped grouped;
  if (call.in) send(group, call.in, call.bytes(), call.root, stream);
  if (call.out) {
    const size_t bytes = call.out_counts ? static_cast<size_t>(*call.out_counts) : call.bytes();
    receive(group, call.out, bytes, call.source, stream);
  }
}

}  // namespace

COMMLIB_NCCL_ALGORITHM(send_recv, nccl_direct, send_recv);

}  // namespace commlib::nccl
