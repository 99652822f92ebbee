// all_gather for Python, with equal blocks and with blocks of sizes.
#include "binding/blocks.h"
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void all_gather(Target& target, const Tensor& out_tensor, const Tensor& x_tensor) {
  const Buffer x(target, x_tensor, "x"), out(target, out_tensor, "out");
  target.open();
  same_dtype(x, out);
  expect_count(out, "out", x.count * target.world(), "one block of x per rank");
  same_or_apart(x, out, target.rank() * x.bytes());
  target.writes(out_tensor);
  Call call = make_call(Op::all_gather, x, out, x.count);
  target.run(call, out.bytes(), {&x, &x});
}

void all_gatherv(Target& target, const Tensor& out_tensor, const Tensor& x_tensor,
                 const Sizes& size_list) {
  const Buffer x(target, x_tensor, "x"), out(target, out_tensor, "out");
  target.open();
  const Blocks sizes(size_list, "sizes", target.world());
  same_dtype(x, out);
  expect_count(x, "x", static_cast<size_t>(sizes.of[target.rank()]), "its entry in sizes");
  expect_count(out, "out", sizes.total, "the sum of sizes");
  same_or_apart(x, out, sizes.before(target.rank()) * size_of(x.dtype));
  target.writes(out_tensor);
  Call call = make_call(Op::all_gatherv, x, out, sizes.total);
  call.in_counts = sizes.of.data();
  call.detail = sizes.digest;
  target.run(call, out.bytes(), {&x, &x});
}

COMMLIB_COLLECTIVE(all_gather, "out, x");
COMMLIB_COLLECTIVE(all_gatherv, "out, x, sizes");

}  // namespace
}  // namespace commlib::binding
