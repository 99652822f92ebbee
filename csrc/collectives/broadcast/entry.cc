// broadcast for Python: x is what the root sends, and where the others get it.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void broadcast(Target& target, const Tensor& x_tensor, int64_t src) {
  const Buffer x(target, x_tensor, "x");
  target.open();
  rank_in_world(src, "src", target.world());
  if (target.rank() != src) target.writes(x_tensor);
  Call call = make_call(Op::broadcast, x, x, x.count, RedOp::sum, src);
  target.run(call, call.bytes(), {&x, &x});
}

COMMLIB_COLLECTIVE(broadcast, "x, src");

}  // namespace
}  // namespace commlib::binding
