// reduce for Python: the result is in the root's `out`, or in its `x` without one.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void reduce(Target& target, const std::optional<Tensor>& out_tensor, const Tensor& x_tensor,
            int64_t dst, RedOp redop) {
  const Buffer x(target, x_tensor, "x");
  const Buffer out = out_tensor ? Buffer(target, *out_tensor, "out") : x;
  target.open();
  rank_in_world(dst, "dst", target.world());
  reducible(target, x, redop);
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  same_or_apart(x, out);
  if (target.rank() == dst) target.writes(out_tensor ? *out_tensor : x_tensor);
  Call call = make_call(Op::reduce, x, out, x.count, redop, dst);
  target.run(call, call.bytes(), {&x, &x});
}

COMMLIB_COLLECTIVE(reduce, "out, x, dst, op");

}  // namespace
}  // namespace commlib::binding
