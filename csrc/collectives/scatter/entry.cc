// scatter for Python: only the root's `x` counts.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void scatter(Target& target, const std::optional<Tensor>& out_tensor,
             const std::optional<Tensor>& x_tensor, int64_t src) {
  target.open();
  rank_in_world(src, "src", target.world());
  if (target.rank() == src && !x_tensor)
    fail("ValueError", "scatter: rank ", src, " is the source and needs x");
  if (!out_tensor) {
    fail("ValueError", "scatter: rank ", target.rank(), " receives from rank ", src,
         " and needs out=");
  }
  const Buffer out(target, *out_tensor, "out");
  const Buffer x = x_tensor ? Buffer(target, *x_tensor, "x") : out;
  if (target.rank() == src) {
    same_dtype(x, out);
    expect_count(x, "x", out.count * target.world(), "one block of out per rank");
    same_or_apart(out, x, target.rank() * out.bytes());
  }
  target.writes(*out_tensor);
  Call call = make_call(Op::scatter, out, out, out.count, RedOp::sum, src);
  call.in = x.data;
  target.run(call, out.bytes() * target.world(), target.rank() == src ? Placed{&x, &x} : Placed{});
}

COMMLIB_COLLECTIVE(scatter, "out, x, src");

}  // namespace
}  // namespace commlib::binding
