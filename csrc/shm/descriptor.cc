// What an operation is, in words and as a number; and what a rank's record says of its
// communicator.
#include <cstring>

#include "commlib/row_call.h"
#include "shm/wait.h"

namespace commlib::shm {

std::string describe(const Descriptor& what, uint64_t seq) {
  const Op op = static_cast<Op>(what.op);
  uint64_t count = what.count;
  std::string out = text(name_of(op), " #", seq);
  if (op == Op::barrier) return out;
  out += text(" (", commlib::name_of(static_cast<DType>(what.dtype)), ", ");
  if (op == Op::all_reduce_rms_norm) {
    count &= (1u << kWidthBits) - 1;
    out += text(counted(what.count >> kWidthBits, "row"), " of ");
  } else if (op == Op::all_reduce_epilogue) {
    count &= (1u << kElementBits) - 1;
    out += text("digest ", what.count >> kElementBits, " of epilogue, types and width, ");
  }
  out += counted(count, "element");
  if (what.redop != kNoRedop) out += text(", ", commlib::name_of(static_cast<RedOp>(what.redop)));
  if (op == Op::all_reduce_rms_norm)
    out += ", " + NormCall::describe_form(what.root);
  else if (what.root != kNoRoot)
    out += text(", root ", int(what.root));
  if (what.inner) out += ", made inside another call";
  return out + ")";
}

record::Identity identity_of(const Segment& segment, int rank, double timeout_s) {
  record::Identity identity = {
      "shm", segment.header()->nonce, rank, segment.layout().world, timeout_s, {}};
  for (int r = 0; r < identity.world; ++r) identity.pids.push_back(segment.control(r)->pid.load());
  return identity;
}

}  // namespace commlib::shm
