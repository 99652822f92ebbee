// The hot path from Python: one function per collective. Each checks its tensors, then runs the
// operation.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/tvm_ffi.h>

#include <string>
#include <utility>

#include "binding/arguments.h"
#include "binding/entry.h"
#include "binding/shm_state.h"

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;
using ffi::TensorView;
using shm::Call;
using shm::Op;

void run(State& state, Call& call, size_t plan_bytes, bool symmetric) {
  const InterpreterLock lock(plan_bytes);
  state.open().run(call, plan_bytes, symmetric);
}

// The tensors lie in this rank's arena; their places are announced to the peers.
bool in_arena(shm::Group& group, Call& call, const Buffer& in, const Buffer& out) {
  const int64_t in_offset = group.arena().offset_of(in.data, in.bytes());
  const int64_t out_offset =
      out.data == in.data ? in_offset : group.arena().offset_of(out.data, out.bytes());
  if (in_offset < 0 || out_offset < 0) return false;
  call.in_offset = static_cast<uint64_t>(in_offset);
  call.out_offset = static_cast<uint64_t>(out_offset);
  return true;
}

void reducible(const shm::Group& group, const Buffer& x, int64_t redop) {
  if (redop < 0 || redop >= kRedOps || !group.reduces(x.dtype, static_cast<RedOp>(redop))) {
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

void all_reduce(State& state, const Buffer& x, const Buffer& out, int64_t redop) {
  shm::Group& group = state.open();
  reducible(group, x, redop);
  Call call = make_call(Op::all_reduce, x, out, x.count, redop);
  run(state, call, call.bytes(), in_arena(group, call, x, out));
}

void reduce(State& state, TensorView out_view, TensorView x_view, int64_t dst, int64_t redop) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  rank_in_world(dst, "dst", group.world());
  reducible(group, x, redop);
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  same_or_apart(x, out);
  Call call = make_call(Op::reduce, x, out, x.count, redop, dst);
  run(state, call, call.bytes(), in_arena(group, call, x, x));
}

void broadcast(State& state, TensorView view, int64_t src) {
  const Buffer x(view, "x");
  shm::Group& group = state.open();
  rank_in_world(src, "src", group.world());
  Call call = make_call(Op::broadcast, x, x, x.count, 0, src);
  run(state, call, call.bytes(), group.rank() == src && in_arena(group, call, x, x));
}

void all_gather(State& state, TensorView out_view, TensorView x_view) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  same_dtype(x, out);
  expect_count(out, "out", x.count * group.world(), "one block of x per rank");
  same_or_apart(x, out, group.rank() * x.bytes());
  Call call = make_call(Op::all_gather, x, out, x.count);
  run(state, call, out.bytes(), in_arena(group, call, x, x));
}

void reduce_scatter(State& state, TensorView out_view, TensorView x_view, int64_t redop) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  reducible(group, x, redop);
  same_dtype(x, out);
  expect_count(x, "x", out.count * group.world(), "one block of out per rank");
  same_or_apart(out, x, group.rank() * out.bytes());
  Call call = make_call(Op::reduce_scatter, x, out, out.count, redop);
  run(state, call, x.bytes(), in_arena(group, call, x, x));
}

void all_to_all(State& state, TensorView out_view, TensorView x_view) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  if (x.count % group.world() != 0) {
    fail("ValueError", "x has ", x.count, " elements, which ", group.world(),
         " ranks cannot share equally; give splits");
  }
  same_or_apart(x, out);
  Call call = make_call(Op::all_to_all, x, out, x.count / group.world());
  run(state, call, x.bytes(), in_arena(group, call, x, x));
}

void gather(State& state, TensorView out_view, TensorView x_view, int64_t dst) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  rank_in_world(dst, "dst", group.world());
  if (group.rank() == dst) {
    same_dtype(x, out);
    expect_count(out, "out", x.count * group.world(), "one block of x per rank");
    same_or_apart(x, out, group.rank() * x.bytes());
  }
  Call call = make_call(Op::gather, x, out, x.count, 0, dst);
  run(state, call, x.bytes() * group.world(), in_arena(group, call, x, x));
}

void scatter(State& state, TensorView out_view, TensorView x_view, int64_t src) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  rank_in_world(src, "src", group.world());
  if (group.rank() == src) {
    same_dtype(x, out);
    expect_count(x, "x", out.count * group.world(), "one block of out per rank");
    same_or_apart(out, x, group.rank() * out.bytes());
  }
  Call call = make_call(Op::scatter, out, out, out.count, 0, src);
  call.in = x.data;
  run(state, call, out.bytes() * group.world(), group.rank() == src && in_arena(group, call, x, x));
}

// Sizes of the ranks' blocks, in elements, as a v-variant is given them.
struct Sizes {
  int64_t of[shm::kMaxRanks] = {};
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

void all_gatherv(State& state, TensorView out_view, TensorView x_view, ffi::Array<int64_t> given) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  const Sizes sizes(given, "sizes", group.world());
  same_dtype(x, out);
  expect_count(x, "x", static_cast<size_t>(sizes.of[group.rank()]), "its entry in sizes");
  expect_count(out, "out", sizes.total, "the sum of sizes");
  same_or_apart(x, out, sizes.before(group.rank()) * size_of(x.dtype));
  Call call = make_call(Op::all_gatherv, x, out, sizes.total);
  call.in_counts = sizes.of;
  call.detail = sizes.digest;
  run(state, call, out.bytes(), in_arena(group, call, x, x));
}

void reduce_scatterv(State& state, TensorView out_view, TensorView x_view,
                     ffi::Array<int64_t> given, int64_t redop) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  const Sizes sizes(given, "sizes", group.world());
  reducible(group, x, redop);
  same_dtype(x, out);
  expect_count(out, "out", static_cast<size_t>(sizes.of[group.rank()]), "its entry in sizes");
  expect_count(x, "x", sizes.total, "the sum of sizes");
  same_or_apart(out, x, sizes.before(group.rank()) * size_of(x.dtype));
  Call call = make_call(Op::reduce_scatterv, x, out, sizes.total, redop);
  call.in_counts = sizes.of;
  call.detail = sizes.digest;
  run(state, call, x.bytes(), in_arena(group, call, x, x));
}

// `longest` is the longest block any rank sends to any other: the ranks exchanged their splits
// beforehand.
void all_to_allv(State& state, TensorView out_view, TensorView x_view,
                 ffi::Array<int64_t> out_splits, ffi::Array<int64_t> in_splits, int64_t longest) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  const Sizes in(in_splits, "in_splits", group.world()),
      from(out_splits, "out_splits", group.world());
  same_dtype(x, out);
  expect_count(x, "x", in.total, "the sum of in_splits");
  expect_count(out, "out", from.total, "the sum of out_splits");
  if (x.data == out.data && x.count > 0)
    fail("ValueError", "all_to_all with splits cannot run in place; pass another out");
  same_or_apart(x, out);
  Call call = make_call(Op::all_to_allv, x, out, static_cast<size_t>(longest));
  call.in_counts = in.of;
  call.out_counts = from.of;
  run(state, call, static_cast<size_t>(longest) * group.world() * size_of(x.dtype),
      in_arena(group, call, x, x));
}

void barrier(State& state) {
  Call call;
  call.op = Op::barrier;
  call.dtype = DType::u8;
  run(state, call, 0, false);
}

shm::Message message_of(const Buffer& x) {
  shm::Descriptor what{};
  what.op = static_cast<uint64_t>(Op::send_recv);
  what.dtype = static_cast<uint64_t>(x.dtype);
  what.count = x.count;
  return {x.data, x.bytes(), what};
}

void send(State& state, TensorView view, int64_t dst) {
  const Buffer x(view, "x");
  rank_in_world(dst, "dst", state.open().world());
  const InterpreterLock lock(x.bytes());
  state.mailbox->send(message_of(x), static_cast<int>(dst));
}

void recv(State& state, TensorView view, int64_t src) {
  const Buffer x(view, "x");
  rank_in_world(src, "src", state.open().world());
  const InterpreterLock lock(x.bytes());
  state.mailbox->receive(message_of(x), static_cast<int>(src));
}

// A function of the given entry point for one communicator.
template <class... Args>
ffi::Function bound(StatePtr state, void (*entry)(State&, Args...)) {
  return ffi::Function::FromTyped([state = std::move(state), entry](Args... args) {
    guarded([&] { entry(*state, std::forward<Args>(args)...); });
  });
}

// The shortest call there is: one tensor, the reduction is part of the function.
ffi::Function bound_all_reduce(StatePtr state, int64_t redop) {
  return ffi::Function::FromTyped([state = std::move(state), redop](TensorView view) {
    guarded([&] {
      const Buffer x(view, "x");
      all_reduce(*state, x, x, redop);
    });
  });
}

ffi::Function bound_all_reduce_into(StatePtr state, int64_t redop) {
  return ffi::Function::FromTyped(
      [state = std::move(state), redop](TensorView out_view, TensorView x_view) {
        guarded([&] {
          const Buffer x(x_view, "x"), out(out_view, "out");
          same_dtype(x, out);
          expect_count(out, "out", x.count, "as many as x");
          same_or_apart(x, out);
          all_reduce(*state, x, out, redop);
        });
      });
}

}  // namespace

ffi::Function bind_call(const StatePtr& state, const std::string& name) {
  const struct {
    const char* name;
    ffi::Function function;
  } table[] = {
      {"all_gather", bound(state, all_gather)},
      {"all_gatherv", bound(state, all_gatherv)},
      {"reduce_scatter", bound(state, reduce_scatter)},
      {"reduce_scatterv", bound(state, reduce_scatterv)},
      {"broadcast", bound(state, broadcast)},
      {"reduce", bound(state, reduce)},
      {"all_to_all", bound(state, all_to_all)},
      {"all_to_allv", bound(state, all_to_allv)},
      {"gather", bound(state, gather)},
      {"scatter", bound(state, scatter)},
      {"send", bound(state, send)},
      {"recv", bound(state, recv)},
      {"barrier", bound(state, barrier)},
  };
  for (const auto& entry : table) {
    if (name == entry.name) return entry.function;
  }
  for (int op = 0; op < kRedOps; ++op) {
    const std::string in_place = std::string("all_reduce_") + name_of(static_cast<RedOp>(op));
    if (name == in_place) return bound_all_reduce(state, op);
    if (name == in_place + "_into") return bound_all_reduce_into(state, op);
  }
  fail("ValueError", "the shm backend has no '", name, "'");
}

}  // namespace commlib::binding
