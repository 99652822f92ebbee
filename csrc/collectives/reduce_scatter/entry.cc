// reduce_scatter for Python, with equal blocks and with blocks of sizes.
#include "binding/blocks.h"
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void reduce_scatter(Target& target, const Tensor& out_tensor, const Tensor& x_tensor, RedOp redop) {
  const Buffer x(target, x_tensor, "x"), out(target, out_tensor, "out");
  target.open();
  reducible(target, x, redop);
  same_dtype(x, out);
  expect_count(x, "x", out.count * target.world(), "one block of out per rank");
  same_or_apart(out, x, target.rank() * out.bytes());
  target.writes(out_tensor);
  Call call = make_call(Op::reduce_scatter, x, out, out.count, redop);
  target.run(call, x.bytes(), {&x, &x});
}

void reduce_scatterv(Target& target, const Tensor& out_tensor, const Tensor& x_tensor,
                     const Sizes& size_list, RedOp redop) {
  const Buffer x(target, x_tensor, "x"), out(target, out_tensor, "out");
  target.open();
  const Blocks sizes(size_list, "sizes", target.world());
  reducible(target, x, redop);
  same_dtype(x, out);
  expect_count(out, "out", static_cast<size_t>(sizes.of[target.rank()]), "its entry in sizes");
  expect_count(x, "x", sizes.total, "the sum of sizes");
  same_or_apart(out, x, sizes.before(target.rank()) * size_of(x.dtype));
  target.writes(out_tensor);
  Call call = make_call(Op::reduce_scatterv, x, out, sizes.total, redop);
  call.in_counts = sizes.of.data();
  call.detail = sizes.digest;
  target.run(call, x.bytes(), {&x, &x});
}

COMMLIB_COLLECTIVE(reduce_scatter, "out, x, op");
COMMLIB_COLLECTIVE(reduce_scatterv, "out, x, sizes, op");

}  // namespace
}  // namespace commlib::binding
