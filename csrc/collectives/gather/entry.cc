// gather for Python: only the root's `out` counts.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void gather(Target& target, const std::optional<Tensor>& out_tensor, const Tensor& x_tensor,
            int64_t dst) {
  const Buffer x(target, x_tensor, "x");
  const Buffer out = out_tensor ? Buffer(target, *out_tensor, "out") : x;
  target.open();
  rank_in_world(dst, "dst", target.world());
  if (target.rank() == dst) {
    same_dtype(x, out);
    expect_count(out, "out", x.count * target.world(), "one block of x per rank");
    same_or_apart(x, out, target.rank() * x.bytes());
    if (out_tensor) target.writes(*out_tensor);
  }
  Call call = make_call(Op::gather, x, out, x.count, RedOp::sum, dst);
  target.run(call, x.bytes() * target.world(), {&x, &x});
}

COMMLIB_COLLECTIVE(gather, "out, x, dst");

}  // namespace
}  // namespace commlib::binding
