// What the algorithms that are NCCL's own calls share.
#pragma once

#include "commlib/call.h"
#include "nccl/group.h"
#include "nccl/nccl_api.h"

namespace commlib::nccl {

// A reduction as NCCL knows it: a bool is a byte, a complex number two floats.
struct Reduction {
  size_t count;
  size_t per_element;
  ncclDataType_t type;
  ncclRedOp_t op;

  explicit Reduction(const Call& call) {
    const bool complex = call.dtype == DType::c64 || call.dtype == DType::c128;
    const DType part = call.dtype == DType::c64 ? DType::f32 : complex ? DType::f64 : call.dtype;
    const int code = nccl_type(part), redop = nccl_redop(call.redop);
    if (code < 0 || redop < 0) {
      fail("Unsupported", "NCCL does not reduce ", name_of(call.dtype), " by ", name_of(call.redop),
           "; let the plan name one of the lsa_ algorithms for it");
    }
    per_element = complex ? 2 : 1;
    count = call.count * per_element;
    type = static_cast<ncclDataType_t>(code);
    op = static_cast<ncclRedOp_t>(redop);
  }
};

// ncclGroupStart to ncclGroupEnd, also where a call between them fails.
class Grouped {
 public:
  Grouped() { check(nccl().ncclGroupStart(), "ncclGroupStart"); }
  ~Grouped() noexcept(false) {
    const ncclResult_t result = nccl().ncclGroupEnd();
    if (!std::uncaught_exceptions()) check(result, "ncclGroupEnd");
  }
  Grouped(const Grouped&) = delete;
  Grouped& operator=(const Grouped&) = delete;
};

inline void send(Group& group, const unsigned char* from, size_t bytes, int rank, CUstream stream) {
  const void* at = group.has_arena() ? group.arena().for_sends(from) : from;
  check(nccl().ncclSend(at, bytes, ncclInt8, rank, group.comm(), stream), "ncclSend");
}

inline void receive(Group& group, unsigned char* to, size_t bytes, int rank, CUstream stream) {
  void* at = group.has_arena() ? group.arena().for_sends(to) : to;
  check(nccl().ncclRecv(at, bytes, ncclInt8, rank, group.comm(), stream), "ncclRecv");
}

inline void require_safe_symmetric_kernels() {
  if (!symmetric_kernels_wait()) {
    fail("Unsupported", "NCCL ", version_text(nccl().version),
         " may read a symmetric tensor before it is written; nccl_symmetric needs NCCL 2.30.7");
  }
}

}  // namespace commlib::nccl
