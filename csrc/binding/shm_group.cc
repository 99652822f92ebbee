// The shm backend for Python: an object for set-up and control, and one closure per collective for the hot path.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "binding/arguments.h"
#include "binding/entry.h"
#include "shm/algorithm.h"
#include "shm/mailbox.h"

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;
using ffi::TensorView;
using shm::Call;
using shm::Op;

// Everything a rank holds; tensors from empty() and bound functions keep it alive past close().
struct State {
  std::shared_ptr<shm::Segment> segment;
  int rank = 0;
  std::unique_ptr<shm::Group> group;
  std::unique_ptr<shm::Mailbox> mailbox;
  bool closed = false;

  shm::Group& open() {
    if (closed || !group) fail("CommError", "this communicator is closed; call commlib.init() for a new one");
    return *group;
  }
};
using StatePtr = std::shared_ptr<State>;

Op op_named(const std::string& name) {
  for (int op = 0; op < shm::kOps; ++op) {
    if (name == shm::name_of(static_cast<Op>(op))) return static_cast<Op>(op);
  }
  fail("ValueError", "unknown collective '", name, "'");
}

void run(State& state, Call& call, size_t plan_bytes, bool symmetric) {
  const InterpreterLock lock(plan_bytes);
  state.open().run(call, plan_bytes, symmetric);
}

// The tensors lie in this rank's arena; their places are announced to the peers.
bool in_arena(shm::Group& group, Call& call, const Buffer& in, const Buffer& out) {
  const int64_t in_offset = group.arena().offset_of(in.data, in.bytes());
  const int64_t out_offset = out.data == in.data ? in_offset : group.arena().offset_of(out.data, out.bytes());
  if (in_offset < 0 || out_offset < 0) return false;
  call.in_offset = static_cast<uint64_t>(in_offset);
  call.out_offset = static_cast<uint64_t>(out_offset);
  return true;
}

void reducible(const shm::Group& group, const Buffer& x, int64_t redop) {
  if (redop < 0 || redop >= kRedOps || !group.reduces(x.dtype, static_cast<RedOp>(redop))) {
    fail("ValueError", "no reduction '", redop >= 0 && redop < kRedOps ? name_of(static_cast<RedOp>(redop)) : "?",
         "' for ", name_of(x.dtype), " (bitwise ones are for integers and bool, min, max and prod for real numbers)");
  }
}

Call make_call(Op op, const Buffer& x, const Buffer& out, size_t count, int64_t redop = 0, int64_t root = 0) {
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
  run(state, call, call.bytes(), false);
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
    fail("ValueError", "x has ", x.count, " elements, which ", group.world(), " ranks cannot share equally; give splits");
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
  run(state, call, x.bytes() * group.world(), false);
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
  run(state, call, out.bytes() * group.world(), false);
}

// Sizes of the ranks' blocks, in elements, as a v-variant is given them.
struct Sizes {
  int64_t of[shm::kMaxRanks] = {};
  size_t total = 0;
  uint64_t digest = 1469598103934665603u;  // FNV-1a

  Sizes(const ffi::Array<int64_t>& sizes, const char* name, int world) {
    if (static_cast<int>(sizes.size()) != world) {
      fail("ValueError", name, " has ", sizes.size(), " entries, but the communicator has ", world, " ranks");
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

void reduce_scatterv(State& state, TensorView out_view, TensorView x_view, ffi::Array<int64_t> given, int64_t redop) {
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

// `longest` is the longest block any rank sends to any other: the ranks exchanged their splits beforehand.
void all_to_allv(State& state, TensorView out_view, TensorView x_view, ffi::Array<int64_t> out_splits,
                 ffi::Array<int64_t> in_splits, int64_t longest) {
  const Buffer x(x_view, "x"), out(out_view, "out");
  shm::Group& group = state.open();
  const Sizes in(in_splits, "in_splits", group.world()), from(out_splits, "out_splits", group.world());
  same_dtype(x, out);
  expect_count(x, "x", in.total, "the sum of in_splits");
  expect_count(out, "out", from.total, "the sum of out_splits");
  if (x.data == out.data && x.count > 0) fail("ValueError", "all_to_all with splits cannot run in place; pass another out");
  same_or_apart(x, out);
  Call call = make_call(Op::all_to_allv, x, out, static_cast<size_t>(longest));
  call.in_counts = in.of;
  call.out_counts = from.of;
  run(state, call, static_cast<size_t>(longest) * group.world() * size_of(x.dtype), false);
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
  return ffi::Function::FromTyped([state = std::move(state), redop](TensorView out_view, TensorView x_view) {
    guarded([&] {
      const Buffer x(x_view, "x"), out(out_view, "out");
      same_dtype(x, out);
      expect_count(out, "out", x.count, "as many as x");
      same_or_apart(x, out);
      all_reduce(*state, x, out, redop);
    });
  });
}

struct ArenaAllocator {
  StatePtr state;
  void AllocData(DLTensor* tensor) {
    guarded([&] { tensor->data = state->open().arena().allocate(static_cast<size_t>(tensor->shape[0])); });
  }
  void FreeData(DLTensor* tensor) {
    if (tensor->data) state->group->arena().free(tensor->data);
  }
};

class ShmGroup : public ffi::Object {
 public:
  // Rank 0 makes the memory (pid 0); the others open it through the maker's descriptor.
  ShmGroup(int64_t world, int64_t rank, int64_t arena_bytes, int64_t nonce, int64_t pid, int64_t fd) {
    guarded([&] {
      if (world < 1 || world > shm::kMaxRanks) {
        fail("Unsupported", "the shm backend serves 1 to ", shm::kMaxRanks, " ranks of one host, not ", world);
      }
      const shm::Layout layout = {static_cast<int>(world), static_cast<size_t>(arena_bytes)};
      const auto unique = static_cast<uint64_t>(nonce);
      state_->rank = static_cast<int>(rank);
      state_->segment = pid == 0 ? shm::Segment::create(layout, unique)
                                 : shm::Segment::attach(layout, unique, static_cast<int>(pid), static_cast<int>(fd));
      state_->segment->back(layout.section(state_->rank), layout.fixed_bytes());
      shm::RankControl* control = state_->segment->control(state_->rank);
      control->cpu.store(-1);
      control->pid.store(getpid());
    });
  }
  ~ShmGroup() { close(); }

  int64_t fd() const { return state_->segment->fd(); }

  // Once every rank has attached.
  void start(double timeout_s, ffi::String isa, bool checked) {
    guarded([&] {
      const ReduceTable* reduce = reduce_table(isa.c_str());
      if (!reduce) fail("Unsupported", "this CPU does not have x86-64-", isa.c_str(), "; unset COMMLIB_ISA");
      connect_interpreter();
      state_->segment->close_descriptor();
      state_->group = std::make_unique<shm::Group>(state_->segment, state_->rank, timeout_s, reduce, checked);
      state_->mailbox =
          std::make_unique<shm::Mailbox>(state_->segment, state_->rank, state_->group->waiter(), checked);
    });
  }

  void clear_plan() { state_->group->plan().clear(); }
  // One rule: ranges as [max_bytes, algorithm id, chunk_bytes, hot] * n; dtype and redop -1 stand for all.
  void add_rule(ffi::String op, bool symmetric, int64_t dtype, int64_t redop, ffi::Array<int64_t> ranges) {
    guarded([&] {
      std::vector<shm::Choice> choices;
      for (size_t i = 0; i + 3 < ranges.size(); i += 4) {
        const int64_t chunk = ranges[i + 2];
        if (chunk < 4096 || chunk > static_cast<int64_t>(shm::kMaxChunkBytes) || chunk % 64 != 0) {
          fail("ValueError", "chunk_bytes ", chunk, " is not a multiple of 64 between 4096 and ", shm::kMaxChunkBytes);
        }
        choices.push_back({static_cast<uint64_t>(ranges[i]), static_cast<int>(ranges[i + 1]), static_cast<size_t>(chunk),
                           ranges[i + 3] != 0});
      }
      state_->group->plan().add(op_named(op), symmetric, static_cast<int>(dtype), static_cast<int>(redop), choices);
    });
  }
  // The algorithm that would run, as the hot path finds it; empty: none.
  ffi::String choice(ffi::String op, bool symmetric, int64_t dtype, int64_t redop, int64_t bytes) {
    return guarded([&]() -> ffi::String {
      const shm::Choice* found = state_->group->plan().find(op_named(op), symmetric, static_cast<DType>(dtype),
                                                            static_cast<RedOp>(redop), static_cast<size_t>(bytes));
      return found ? shm::algorithm(found->algorithm).name : "";
    });
  }

  ffi::Function bind(ffi::String name) {
    return guarded([&]() -> ffi::Function {
      const std::string wanted = name;
      const struct {
        const char* name;
        ffi::Function function;
      } table[] = {
          {"all_gather", bound(state_, all_gather)},
          {"all_gatherv", bound(state_, all_gatherv)},
          {"reduce_scatter", bound(state_, reduce_scatter)},
          {"reduce_scatterv", bound(state_, reduce_scatterv)},
          {"broadcast", bound(state_, broadcast)},
          {"reduce", bound(state_, reduce)},
          {"all_to_all", bound(state_, all_to_all)},
          {"all_to_allv", bound(state_, all_to_allv)},
          {"gather", bound(state_, gather)},
          {"scatter", bound(state_, scatter)},
          {"send", bound(state_, send)},
          {"recv", bound(state_, recv)},
          {"barrier", bound(state_, barrier)},
      };
      for (const auto& entry : table) {
        if (wanted == entry.name) return entry.function;
      }
      for (int op = 0; op < kRedOps; ++op) {
        const std::string in_place = std::string("all_reduce_") + name_of(static_cast<RedOp>(op));
        if (wanted == in_place) return bound_all_reduce(state_, op);
        if (wanted == in_place + "_into") return bound_all_reduce_into(state_, op);
      }
      fail("ValueError", "the shm backend has no '", wanted, "'");
    });
  }

  // One-dimensional bytes in the arena; the tensor keeps the memory alive.
  ffi::Tensor empty(int64_t bytes) {
    guarded([&] {
      if (bytes < 0) fail("ValueError", "empty() of ", bytes, " bytes; shapes are 0 or more");
    });
    return ffi::Tensor::FromNDAlloc(ArenaAllocator{state_}, ffi::Shape({bytes}), DLDataType{kDLUInt, 8, 1},
                                    DLDevice{kDLCPU, 0});
  }

  void check() {
    guarded([&] { state_->open().waiter().check_peers(); });
  }
  void abort(ffi::String why) {
    if (state_->group && !state_->closed) state_->group->waiter().record_ending("CommError", why);
  }
  // In a forked child: the memory is the parent's to close.
  void abandon() { state_->closed = true; }
  void close() {
    if (state_->closed) return;
    state_->closed = true;
    if (state_->segment) state_->segment->control(state_->rank)->closed.store(1);
    if (state_->group) state_->group->waiter().announce_close();
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("commlib.ShmGroup", ShmGroup, ffi::Object);

 private:
  StatePtr state_ = std::make_shared<State>();
};

int64_t algorithm_id(ffi::String op, ffi::String name) {
  return guarded([&] { return int64_t{shm::find_algorithm(op_named(op), name.c_str())}; });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<ShmGroup>()
      .def(refl::init<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>())
      .def("fd", &ShmGroup::fd)
      .def("start", &ShmGroup::start)
      .def("clear_plan", &ShmGroup::clear_plan)
      .def("add_rule", &ShmGroup::add_rule)
      .def("choice", &ShmGroup::choice)
      .def("bind", &ShmGroup::bind)
      .def("empty", &ShmGroup::empty)
      .def("check", &ShmGroup::check)
      .def("abort", &ShmGroup::abort)
      .def("abandon", &ShmGroup::abandon)
      .def("close", &ShmGroup::close);
  refl::GlobalDef().def("commlib.shm.algorithm_id", algorithm_id);
}

}  // namespace
}  // namespace commlib::binding
