// The hot path from Python: one method per collective. Each checks its tensors, then runs the
// operation.
#include "binding/calls.h"

#include <string>
#include <utility>
#include <vector>

#include "binding/arguments.h"
#include "binding/method.h"

namespace commlib::binding {
namespace {

// Every reduction's code, by what Python callers may give: a name, or torch's ReduceOp.
Object* redop_codes = nullptr;
void set_redops(Object* codes) { redop_codes = python::again(codes); }

void reducible(const Target& target, const Buffer& x, RedOp redop) {
  if (target.reduces(x.dtype, redop)) return;
  fail("ValueError", "no reduction '", name_of(redop), "' for ", name_of(x.dtype),
       " (bitwise ones are for integers and bool, min, max and prod for real numbers)");
}

Call make_call(Op op, const Buffer& x, const Buffer& out, size_t count, RedOp redop = RedOp::sum,
               int64_t root = 0) {
  Call call;
  call.op = op;
  call.dtype = x.dtype;
  call.redop = redop;
  call.root = static_cast<int>(root);
  call.in = x.data;
  call.out = out.data;
  call.count = count;
  return call;
}

void reduce_all(Target& target, const Buffer& x, const Buffer& out, RedOp redop) {
  target.open();
  reducible(target, x, redop);
  Call call = make_call(Op::all_reduce, x, out, x.count, redop);
  target.run(call, call.bytes(), {&x, &out});
}

// Times 16 bytes times all ranks it still fits 64 bits.
constexpr int64_t kMostElements = int64_t{1} << 52;

// Sizes of the ranks' blocks, in elements, as a v-variant is given them.
struct Blocks {
  int64_t of[kMaxRanks] = {};
  size_t total = 0;
  uint64_t digest = 1469598103934665603u;  // FNV-1a

  Blocks(const std::vector<int64_t>& sizes, const char* name, int world) {
    if (static_cast<int>(sizes.size()) != world) {
      fail("ValueError", name, " has ", sizes.size(), " entries, but the communicator has ", world,
           " ranks");
    }
    for (int r = 0; r < world; ++r) {
      of[r] = sizes[r];
      if (of[r] < 0) fail("ValueError", name, "[", r, "] is ", of[r], "; sizes are 0 or more");
      if (of[r] > kMostElements - static_cast<int64_t>(total))
        fail("ValueError", name, " adds up to more elements than a tensor can have");
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

}  // namespace

template <>
struct From<RedOp> {
  static std::string name() { return "object"; }
  static RedOp take(Object* object, const Argument&) {
    Object* const code = PyDict_GetItemWithError(redop_codes, object);
    if (!code) refuse(object);
    return static_cast<RedOp>(python::integer(code, {"code"}));
  }

 private:
  [[noreturn]] static void refuse(Object* object) {
    PyErr_Clear();  // an object that cannot be in a dictionary
    std::string names;
    for (int op = 0; op < kRedOps; ++op)
      names += (op ? ", " : "") + std::string(commlib::name_of(static_cast<RedOp>(op)));
    fail("ValueError", "unknown reduction ", python::repr(object), "; use one of ", names,
         " or a torch.distributed.ReduceOp");
  }
};

Object* Calls::all_reduce(const Tensor& x_given, RedOp redop, const std::optional<Tensor>& given) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x");
  if (!given) {
    reduce_all(target, x, x, redop);
    return python::again(x_given.object());
  }
  const Buffer out(target, *given, "out");
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  same_or_apart(x, out);
  reduce_all(target, x, out, redop);
  return python::again(given->object());
}

void Calls::reduce(const Tensor& out_given, const Tensor& x_given, int64_t dst, RedOp redop) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  rank_in_world(dst, "dst", target.world());
  reducible(target, x, redop);
  same_dtype(x, out);
  expect_count(out, "out", x.count, "as many as x");
  same_or_apart(x, out);
  Call call = make_call(Op::reduce, x, out, x.count, redop, dst);
  target.run(call, call.bytes(), {&x, &x});
}

void Calls::broadcast(const Tensor& x_given, int64_t src) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x");
  target.open();
  rank_in_world(src, "src", target.world());
  Call call = make_call(Op::broadcast, x, x, x.count, RedOp::sum, src);
  target.run(call, call.bytes(), target.rank() == src ? Placed{&x, &x} : Placed{});
}

void Calls::all_gather(const Tensor& out_given, const Tensor& x_given) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  same_dtype(x, out);
  expect_count(out, "out", x.count * target.world(), "one block of x per rank");
  same_or_apart(x, out, target.rank() * x.bytes());
  Call call = make_call(Op::all_gather, x, out, x.count);
  target.run(call, out.bytes(), {&x, &x});
}

void Calls::reduce_scatter(const Tensor& out_given, const Tensor& x_given, RedOp redop) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  reducible(target, x, redop);
  same_dtype(x, out);
  expect_count(x, "x", out.count * target.world(), "one block of out per rank");
  same_or_apart(out, x, target.rank() * out.bytes());
  Call call = make_call(Op::reduce_scatter, x, out, out.count, redop);
  target.run(call, x.bytes(), {&x, &x});
}

void Calls::all_to_all(const Tensor& out_given, const Tensor& x_given) {
  Target& target = *target_;
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

void Calls::gather(const Tensor& out_given, const Tensor& x_given, int64_t dst) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  rank_in_world(dst, "dst", target.world());
  if (target.rank() == dst) {
    same_dtype(x, out);
    expect_count(out, "out", x.count * target.world(), "one block of x per rank");
    same_or_apart(x, out, target.rank() * x.bytes());
  }
  Call call = make_call(Op::gather, x, out, x.count, RedOp::sum, dst);
  target.run(call, x.bytes() * target.world(), {&x, &x});
}

void Calls::scatter(const Tensor& out_given, const Tensor& x_given, int64_t src) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  rank_in_world(src, "src", target.world());
  if (target.rank() == src) {
    same_dtype(x, out);
    expect_count(x, "x", out.count * target.world(), "one block of out per rank");
    same_or_apart(out, x, target.rank() * out.bytes());
  }
  Call call = make_call(Op::scatter, out, out, out.count, RedOp::sum, src);
  call.in = x.data;
  target.run(call, out.bytes() * target.world(), target.rank() == src ? Placed{&x, &x} : Placed{});
}

void Calls::all_gatherv(const Tensor& out_given, const Tensor& x_given, const Sizes& given) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  const Blocks sizes(given, "sizes", target.world());
  same_dtype(x, out);
  expect_count(x, "x", static_cast<size_t>(sizes.of[target.rank()]), "its entry in sizes");
  expect_count(out, "out", sizes.total, "the sum of sizes");
  same_or_apart(x, out, sizes.before(target.rank()) * size_of(x.dtype));
  Call call = make_call(Op::all_gatherv, x, out, sizes.total);
  call.in_counts = sizes.of;
  call.detail = sizes.digest;
  target.run(call, out.bytes(), {&x, &x});
}

void Calls::reduce_scatterv(const Tensor& out_given, const Tensor& x_given, const Sizes& given,
                            RedOp redop) {
  Target& target = *target_;
  const Buffer x(target, x_given, "x"), out(target, out_given, "out");
  target.open();
  const Blocks sizes(given, "sizes", target.world());
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

void Calls::all_to_allv(const Tensor& out_given, const Tensor& x_given, const Sizes& out_splits,
                        const Sizes& in_splits, int64_t longest) {
  Target& target = *target_;
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

void Calls::barrier() {
  enqueue_barrier();
  target_->finish_barrier();
}

void Calls::enqueue_barrier() {
  Call call;
  call.op = Op::barrier;
  call.dtype = DType::u8;
  target_->open();
  target_->run(call, 0, {});
}

void Calls::send(const Tensor& x_given, int64_t dst) {
  const Buffer x(*target_, x_given, "x");
  target_->open();
  rank_in_world(dst, "dst", target_->world());
  target_->send(x, static_cast<int>(dst));
}

void Calls::recv(const Tensor& x_given, int64_t src) {
  const Buffer x(*target_, x_given, "x");
  target_->open();
  rank_in_world(src, "src", target_->world());
  target_->receive(x, static_cast<int>(src));
}

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("set_redops", set_redops, "codes")});
  module.add_class<Calls>({
      COMMLIB_METHOD("all_reduce", Calls::all_reduce, "x, redop, out"),
      COMMLIB_METHOD("reduce", Calls::reduce, "out, x, dst, redop"),
      COMMLIB_METHOD("broadcast", Calls::broadcast, "x, src"),
      COMMLIB_METHOD("all_gather", Calls::all_gather, "out, x"),
      COMMLIB_METHOD("all_gatherv", Calls::all_gatherv, "out, x, sizes"),
      COMMLIB_METHOD("reduce_scatter", Calls::reduce_scatter, "out, x, redop"),
      COMMLIB_METHOD("reduce_scatterv", Calls::reduce_scatterv, "out, x, sizes, redop"),
      COMMLIB_METHOD("all_to_all", Calls::all_to_all, "out, x"),
      COMMLIB_METHOD("all_to_allv", Calls::all_to_allv, "out, x, out_splits, in_splits, longest"),
      COMMLIB_METHOD("gather", Calls::gather, "out, x, dst"),
      COMMLIB_METHOD("scatter", Calls::scatter, "out, x, src"),
      COMMLIB_METHOD("send", Calls::send, "x, dst"),
      COMMLIB_METHOD("recv", Calls::recv, "x, src"),
      COMMLIB_METHOD("barrier", Calls::barrier, ""),
      COMMLIB_METHOD("enqueue_barrier", Calls::enqueue_barrier, ""),
  });
}

}  // namespace commlib::binding
