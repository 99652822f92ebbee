// all_to_all for Python, with equal blocks and with splits.
#include "binding/blocks.h"
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void all_to_all(Target& target, const Tensor& out_given, const Tensor& x_given) {
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  if (x.count % target.world() != 0) {
    fail("ValueError", "x has ", x.count, " elements, which ", target.world(),
         " ranks cannot share equally; give splits");
  }
  same_or_apart(x, out);
  Call call = make_call(Op::all_to_all, x, out, x.count / target.world());
  target.run(call, x.bytes(), {&x, &x});
}

// `longest` is the longest block any rank sends to any other: the ranks exchanged their splits
// beforehand.
void all_to_allv(Target& target, const Tensor& out_given, const Tensor& x_given,
                 const Sizes& out_splits, const Sizes& in_splits, int64_t longest) {
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  const Blocks in(in_splits, "in_splits", target.world()),
      from(out_splits, "out_splits", target.world());
  same_dtype(x, out);
  expect_count(x, "x", in.total, "the sum of in_splits");
  expect_count(out, "out", from.total, "the sum of out_splits");
  if (x.data == out.data && x.count > 0)
    fail("ValueError", "all_to_all with splits cannot run in place; pass another out");
  same_or_apart(x, out);
  if (longest < 0 || longest > kMostElements)
    fail("ValueError", "a rank sends ", longest, " elements to another; no tensor has so many");
  Call call = make_call(Op::all_to_allv, x, out, static_cast<size_t>(longest));
  call.in_counts = in.of;
  call.out_counts = from.of;
  target.run(call, static_cast<size_t>(longest) * target.world() * size_of(x.dtype), {&x, &x});
}

COMMLIB_CALL(all_to_all, "out, x");
COMMLIB_CALL(all_to_allv, "out, x, out_splits, in_splits, longest");

}  // namespace
}  // namespace commlib::binding
