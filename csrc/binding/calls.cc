// The hot path from Python: one function per collective. Each checks its tensors, then runs the
// operation.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/tvm_ffi.h>

#include <string>
#include <utility>

#include "binding/arguments.h"
#include "binding/entry.h"
#include "binding/target.h"

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;
using ffi::TensorView;

void reducible(const Target& target, const Buffer& x, int64_t redop) {
  if (redop < 0 || redop >= kRedOps || !target.reduces(x.dtype, static_cast<RedOp>(redop))) {
    fail("ValueError", "no reduction '",
         redop >= 0 && redop < kRedOps ? name_of(static_cast<RedOp>(redop)) : "?", "' for ",
         name_of(x.dtype),
         " (bitwise ones are for integers and bool, min, max and prod for real numbers)");
  }
}

Call make_call(Op op, const Buffer& x, const Buffer& out, size_t count, int64_t redop = 0,
               int64_t root = 0) {
  Call call;
  call.op = op;
  call.dtype = x.dtype;
  call.redop = static_cast<RedOp>(redop);
  call.root = static_cast<int>(root);
  call.in = x.data;
  call.out = out.data;
  call.count = count;
  return call;
}

void all_reduce(Target& target, const Buffer& x, const Buffer& out, int64_t redop) {
  target.open();
  reducible(target, x, redop);
  Call call = make_call(Op::all_reduce, x, out, x.count, redop);
  target.run(call, call.bytes(), {&x, &out});
}

void reduce(Target& target, TensorView out_view, TensorView x_view, int64_t dst, int64_t redop) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
  target.open();
  rank_in_world(dst, "dst", target.world());
  reducible(target, x, redop);
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  same_or_apart(x, out);
  Call call = make_call(Op::reduce, x, out, x.count, redop, dst);
  target.run(call, call.bytes(), {&x, &x});
}

void broadcast(Target& target, TensorView view, int64_t src) {
  const Buffer x(target, view, "x");
  target.open();
  rank_in_world(src, "src", target.world());
  Call call = make_call(Op::broadcast, x, x, x.count, 0, src);
  target.run(call, call.bytes(), target.rank() == src ? Placed{&x, &x} : Placed{});
}

void all_gather(Target& target, TensorView out_view, TensorView x_view) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
  target.open();
  same_dtype(x, out);
  expect_count(out, "out", x.count * target.world(), "one block of x per rank");
  same_or_apart(x, out, target.rank() * x.bytes());
  Call call = make_call(Op::all_gather, x, out, x.count);
  target.run(call, out.bytes(), {&x, &x});
}

void reduce_scatter(Target& target, TensorView out_view, TensorView x_view, int64_t redop) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
  target.open();
  reducible(target, x, redop);
  same_dtype(x, out);
  expect_count(x, "x", out.count * target.world(), "one block of out per rank");
  same_or_apart(out, x, target.rank() * out.bytes());
  Call call = make_call(Op::reduce_scatter, x, out, out.count, redop);
  target.run(call, x.bytes(), {&x, &x});
}

void all_to_all(Target& target, TensorView out_view, TensorView x_view) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
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

void gather(Target& target, TensorView out_view, TensorView x_view, int64_t dst) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
  target.open();
  rank_in_world(dst, "dst", target.world());
  if (target.rank() == dst) {
    same_dtype(x, out);
    expect_count(out, "out", x.count * target.world(), "one block of x per rank");
    same_or_apart(x, out, target.rank() * x.bytes());
  }
  Call call = make_call(Op::gather, x, out, x.count, 0, dst);
  target.run(call, x.bytes() * target.world(), {&x, &x});
}

void scatter(Target& target, TensorView out_view, TensorView x_view, int64_t src) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
  target.open();
  rank_in_world(src, "src", target.world());
  if (target.rank() == src) {
    same_dtype(x, out);
    expect_count(x, "x", out.count * target.world(), "one block of out per rank");
    same_or_apart(out, x, target.rank() * out.bytes());
  }
  Call call = make_call(Op::scatter, out, out, out.count, 0, src);
  call.in = x.data;
  target.run(call, out.bytes() * target.world(), target.rank() == src ? Placed{&x, &x} : Placed{});
}

// Sizes of the ranks' blocks, in elements, as a v-variant is given them.
struct Sizes {
  int64_t of[kMaxRanks] = {};
  size_t total = 0;
  uint64_t digest = 1469598103934665603u;  // FNV-1a

  Sizes(const ffi::Array<int64_t>& sizes, const char* name, int world) {
    if (static_cast<int>(sizes.size()) != world) {
      fail("ValueError", name, " has ", sizes.size(), " entries, but the communicator has ", world,
           " ranks");
    }
    for (int r = 0; r < world; ++r) {
      of[r] = sizes[r];
      if (of[r] < 0) fail("ValueError", name, "[", r, "] is ", of[r], "; sizes are 0 or more");
      total += static_cast<size_t>(of[r]);
      digest = (digest ^ static_cast<uint64_t>(of[r])) * 1099511628211u;
    }
  }
  size_t before(int rank) const {
    size_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += static_cast<size_t>(of[r]);
    return sum;
  }
};

void all_gatherv(Target& target, TensorView out_view, TensorView x_view,
                 ffi::Array<int64_t> given) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
  target.open();
  const Sizes sizes(given, "sizes", target.world());
  same_dtype(x, out);
  expect_count(x, "x", static_cast<size_t>(sizes.of[target.rank()]), "its entry in sizes");
  expect_count(out, "out", sizes.total, "the sum of sizes");
  same_or_apart(x, out, sizes.before(target.rank()) * size_of(x.dtype));
  Call call = make_call(Op::all_gatherv, x, out, sizes.total);
  call.in_counts = sizes.of;
  call.detail = sizes.digest;
  target.run(call, out.bytes(), {&x, &x});
}

void reduce_scatterv(Target& target, TensorView out_view, TensorView x_view,
                     ffi::Array<int64_t> given, int64_t redop) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
  target.open();
  const Sizes sizes(given, "sizes", target.world());
  reducible(target, x, redop);
  same_dtype(x, out);
  expect_count(out, "out", static_cast<size_t>(sizes.of[target.rank()]), "its entry in sizes");
  expect_count(x, "x", sizes.total, "the sum of sizes");
  same_or_apart(out, x, sizes.before(target.rank()) * size_of(x.dtype));
  Call call = make_call(Op::reduce_scatterv, x, out, sizes.total, redop);
  call.in_counts = sizes.of;
  call.detail = sizes.digest;
  target.run(call, x.bytes(), {&x, &x});
}

// `longest` is the longest block any rank sends to any other: the ranks exchanged their splits
// beforehand.
void all_to_allv(Target& target, TensorView out_view, TensorView x_view,
                 ffi::Array<int64_t> out_splits, ffi::Array<int64_t> in_splits, int64_t longest) {
  const Buffer x(target, x_view, "x"), out(target, out_view, "out");
  target.open();
  const Sizes in(in_splits, "in_splits", target.world()),
      from(out_splits, "out_splits", target.world());
  same_dtype(x, out);
  expect_count(x, "x", in.total, "the sum of in_splits");
  expect_count(out, "out", from.total, "the sum of out_splits");
  if (x.data == out.data && x.count > 0)
    fail("ValueError", "all_to_all with splits cannot run in place; pass another out");
  same_or_apart(x, out);
  Call call = make_call(Op::all_to_allv, x, out, static_cast<size_t>(longest));
  call.in_counts = in.of;
  call.out_counts = from.of;
  target.run(call, static_cast<size_t>(longest) * target.world() * size_of(x.dtype), {&x, &x});
}

void barrier(Target& target) {
  Call call;
  call.op = Op::barrier;
  call.dtype = DType::u8;
  target.open();
  target.run(call, 0, {});
}

void send(Target& target, TensorView view, int64_t dst) {
  const Buffer x(target, view, "x");
  target.open();
  rank_in_world(dst, "dst", target.world());
  target.send(x, static_cast<int>(dst));
}

void recv(Target& target, TensorView view, int64_t src) {
  const Buffer x(target, view, "x");
  target.open();
  rank_in_world(src, "src", target.world());
  target.receive(x, static_cast<int>(src));
}

// A function of the given entry point for one communicator.
template <class... Args>
ffi::Function bound(TargetPtr target, void (*entry)(Target&, Args...)) {
  return ffi::Function::FromTyped([target = std::move(target), entry](Args... args) {
    guarded([&] { entry(*target, std::forward<Args>(args)...); });
  });
}

// The shortest call there is: one tensor, the reduction is part of the function.
ffi::Function bound_all_reduce(TargetPtr target, int64_t redop) {
  return ffi::Function::FromTyped([target = std::move(target), redop](TensorView view) {
    guarded([&] {
      const Buffer x(*target, view, "x");
      all_reduce(*target, x, x, redop);
    });
  });
}

ffi::Function bound_all_reduce_into(TargetPtr target, int64_t redop) {
  return ffi::Function::FromTyped(
      [target = std::move(target), redop](TensorView out_view, TensorView x_view) {
        guarded([&] {
          const Buffer x(*target, x_view, "x"), out(*target, out_view, "out");
          same_dtype(x, out);
          expect_count(out, "out", x.count, "as many as x");
          same_or_apart(x, out);
          all_reduce(*target, x, out, redop);
        });
      });
}

}  // namespace

ffi::Function bind_call(const TargetPtr& target, const std::string& name) {
  const struct {
    const char* name;
    ffi::Function function;
  } table[] = {
      {"all_gather", bound(target, all_gather)},
      {"all_gatherv", bound(target, all_gatherv)},
      {"reduce_scatter", bound(target, reduce_scatter)},
      {"reduce_scatterv", bound(target, reduce_scatterv)},
      {"broadcast", bound(target, broadcast)},
      {"reduce", bound(target, reduce)},
      {"all_to_all", bound(target, all_to_all)},
      {"all_to_allv", bound(target, all_to_allv)},
      {"gather", bound(target, gather)},
      {"scatter", bound(target, scatter)},
      {"send", bound(target, send)},
      {"recv", bound(target, recv)},
      {"barrier", bound(target, barrier)},
  };
  for (const auto& entry : table) {
    if (name == entry.name) return entry.function;
  }
  for (int op = 0; op < kRedOps; ++op) {
    const std::string in_place = std::string("all_reduce_") + name_of(static_cast<RedOp>(op));
    if (name == in_place) return bound_all_reduce(target, op);
    if (name == in_place + "_into") return bound_all_reduce_into(target, op);
  }
  fail("ValueError", "there is no entry point '", name, "'");
}

}  // namespace commlib::binding
