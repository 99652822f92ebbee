// The shm backend for Python: the object for set-up and control.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "binding/entry.h"
#include "binding/shm_state.h"
#include "shm/algorithm.h"

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;
using shm::Op;

Op op_named(const std::string& name) {
  for (int op = 0; op < shm::kOps; ++op) {
    if (name == shm::name_of(static_cast<Op>(op))) return static_cast<Op>(op);
  }
  fail("ValueError", "unknown collective '", name, "'");
}

struct ArenaAllocator {
  StatePtr state;
  void AllocData(DLTensor* tensor) {
    guarded([&] {
      tensor->data = state->open().arena().allocate(static_cast<size_t>(tensor->shape[0]));
    });
  }
  void FreeData(DLTensor* tensor) {
    if (tensor->data) state->group->arena().free(tensor->data);
  }
};

class ShmGroup : public ffi::Object {
 public:
  // Rank 0 makes the memory (pid 0); the others open it through the maker's descriptor.
  ShmGroup(int64_t world, int64_t rank, int64_t arena_bytes, int64_t nonce, int64_t pid,
           int64_t fd) {
    guarded([&] {
      if (world < 1 || world > shm::kMaxRanks) {
        fail("Unsupported", "the shm backend serves 1 to ", shm::kMaxRanks,
             " ranks of one host, not ", world);
      }
      const shm::Layout layout = {static_cast<int>(world), static_cast<size_t>(arena_bytes)};
      const auto unique = static_cast<uint64_t>(nonce);
      state_->rank = static_cast<int>(rank);
      state_->segment = pid == 0 ? shm::Segment::create(layout, unique)
                                 : shm::Segment::attach(layout, unique, static_cast<int>(pid),
                                                        static_cast<int>(fd));
      state_->segment->back(layout.section(state_->rank), layout.fixed_bytes());
      shm::RankControl* control = state_->segment->control(state_->rank);
      control->cpu.store(-1);
      shm::publish_cores(control);
      control->pid.store(getpid());
    });
  }
  ~ShmGroup() { close(); }

  int64_t fd() const { return state_->segment->fd(); }

  // Once every rank has attached.
  void start(double timeout_s, ffi::String isa, bool checked) {
    guarded([&] {
      const ReduceTable* reduce = reduce_table(isa.c_str());
      if (!reduce)
        fail("Unsupported", "this CPU does not have x86-64-", isa.c_str(), "; unset COMMLIB_ISA");
      connect_interpreter();
      state_->segment->close_descriptor();
      state_->group =
          std::make_unique<shm::Group>(state_->segment, state_->rank, timeout_s, reduce, checked);
      state_->mailbox = std::make_unique<shm::Mailbox>(state_->segment, state_->rank,
                                                       state_->group->waiter(), checked);
    });
  }

  void clear_plan() { state_->group->plan().clear(); }
  // One rule: ranges as [max_bytes, algorithm id, chunk_bytes, hot] * n; dtype and redop -1 stand
  // for all.
  void add_rule(ffi::String op, bool symmetric, int64_t dtype, int64_t redop,
                ffi::Array<int64_t> ranges) {
    guarded([&] {
      std::vector<shm::Choice> choices;
      for (size_t i = 0; i + 3 < ranges.size(); i += 4) {
        const int64_t chunk = ranges[i + 2];
        if (chunk < 4096 || chunk > static_cast<int64_t>(shm::kMaxChunkBytes) || chunk % 64 != 0) {
          fail("ValueError", "chunk_bytes ", chunk, " is not a multiple of 64 between 4096 and ",
               shm::kMaxChunkBytes);
        }
        choices.push_back({static_cast<uint64_t>(ranges[i]), static_cast<int>(ranges[i + 1]),
                           static_cast<size_t>(chunk), ranges[i + 3] != 0});
      }
      state_->group->plan().add(op_named(op), symmetric, static_cast<int>(dtype),
                                static_cast<int>(redop), choices);
    });
  }
  // The algorithm that would run, as the hot path finds it; empty: none.
  ffi::String choice(ffi::String op, bool symmetric, int64_t dtype, int64_t redop, int64_t bytes) {
    return guarded([&]() -> ffi::String {
      const shm::Choice* found =
          state_->group->plan().find(op_named(op), symmetric, static_cast<DType>(dtype),
                                     static_cast<RedOp>(redop), static_cast<size_t>(bytes));
      return found ? shm::algorithm(found->algorithm).name : "";
    });
  }

  ffi::Function bind(ffi::String name) {
    return guarded([&] { return bind_call(state_, name); });
  }

  // One-dimensional bytes in the arena; the tensor keeps the memory alive.
  ffi::Tensor empty(int64_t bytes) {
    guarded([&] {
      if (bytes < 0) fail("ValueError", "empty() of ", bytes, " bytes; shapes are 0 or more");
    });
    return ffi::Tensor::FromNDAlloc(ArenaAllocator{state_}, ffi::Shape({bytes}),
                                    DLDataType{kDLUInt, 8, 1}, DLDevice{kDLCPU, 0});
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

ffi::ObjectRef open_group(int64_t world, int64_t rank, int64_t arena_bytes, int64_t nonce,
                          int64_t pid, int64_t fd) {
  return ffi::ObjectRef(ffi::make_object<ShmGroup>(world, rank, arena_bytes, nonce, pid, fd));
}

int64_t algorithm_id(ffi::String op, ffi::String name) {
  return guarded([&] { return int64_t{shm::find_algorithm(op_named(op), name.c_str())}; });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<ShmGroup>()
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
  refl::GlobalDef()
      .def("commlib.shm.algorithm_id", algorithm_id)
      .def("commlib.shm.open", open_group);
}

}  // namespace
}  // namespace commlib::binding
