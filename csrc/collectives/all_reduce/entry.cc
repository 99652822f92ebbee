// all_reduce for Python: the result is in `out`, or in `x` without one.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void reduce_all(Target& target, const Buffer& x, const Buffer& out, const Tensor& result,
                RedOp redop) {
  target.open();
  reducible(target, x, redop);
  target.writes(result);
  Call call = make_call(Op::all_reduce, x, out, x.count, redop);
  target.run(call, call.bytes(), {&x, &out});
}

Object* all_reduce(Target& target, const Tensor& x_tensor, RedOp redop,
                   const std::optional<Tensor>& out_tensor) {
  const Buffer x(target, x_tensor, "x");
  if (!out_tensor) {
    reduce_all(target, x, x, x_tensor, redop);
    return python::again(x_tensor.object());
  }
  const Buffer out(target, *out_tensor, "out");
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  same_or_apart(x, out);
  reduce_all(target, x, out, *out_tensor, redop);
  return python::again(out_tensor->object());
}

COMMLIB_COLLECTIVE(all_reduce, "x, op, out", "Tensor");

}  // namespace
}  // namespace commlib::binding
