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

Object* all_reduce(Target& target, const Tensor& x_given, RedOp redop,
                   const std::optional<Tensor>& given) {
  const Buffer x(target, x_given, "x");
  if (!given) {
    reduce_all(target, x, x, x_given, redop);
    return python::again(x_given.object());
  }
  const Buffer out(target, *given, "out");
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  same_or_apart(x, out);
  reduce_all(target, x, out, *given, redop);
  return python::again(given->object());
}

COMMLIB_COLLECTIVE(all_reduce, "x, op, out");

}  // namespace
}  // namespace commlib::binding
