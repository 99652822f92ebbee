// The nccl backend for Python: the object for set-up and control.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <string>
#include <vector>

#include "binding/arena_tensor.h"
#include "binding/entry.h"
#include "binding/nccl_target.h"

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;
using nccl::Group;

class NcclGroup : public ffi::Object {
 public:
  NcclGroup(int64_t comm, int64_t rank, int64_t world, int64_t device, double timeout_s,
            int64_t user_bytes) {
    guarded([&] {
      target_->place(static_cast<int>(rank), static_cast<int>(world), static_cast<int>(device));
      connect_interpreter();
      target_->group = std::make_unique<Group>(
          Group::Settings{reinterpret_cast<nccl::ncclComm_t>(comm), static_cast<int>(rank),
                          static_cast<int>(world), timeout_s, static_cast<size_t>(user_bytes)});
    });
  }

  // Symmetric memory, one step at a time: between them the ranks tell each other how it went.
  void set_up(ffi::String step, int64_t nonce) {
    guarded([&] {
      Group& group = *target_->group;
      if (step == "acquire") {
        group.make_arena();
        group.arena().acquire();
      } else if (step == "register") {
        group.arena().register_window();
      } else if (step == "resolve") {
        group.arena().resolve();
        group.arena().write_token(static_cast<uint64_t>(nonce));
      } else {
        group.arena().check_tokens(static_cast<uint64_t>(nonce));
      }
    });
  }
  void without_arena(ffi::String why) { target_->group->without_arena(why); }

  // `build(op, algorithm, dtype, redop)` returns [cubin, symbol] of a kernel.
  void start(ffi::Array<int64_t> pids, ffi::Function build) {
    guarded([&] {
      std::vector<int> ids(pids.begin(), pids.end());
      target_->group->start(
          ids, [build](const nccl::Kernel& kernel, const char* dtype, const char* redop) {
            const auto built = build(std::string(name_of(kernel.op)), kernel.name,
                                     std::string(dtype), std::string(redop))
                                   .cast<ffi::Array<ffi::Any>>();
            return Cubin{std::string(built[0].cast<ffi::Bytes>()),
                         std::string(built[1].cast<ffi::String>())};
          });
    });
  }

  // Every algorithm of this backend, as its row says it; then the plan that chooses among them.
  void learn(ffi::String rows) {
    guarded([&] { target_->group->learn(rows); });
  }
  void set_plan(ffi::String plan) {
    guarded([&] { target_->group->set_plan(plan); });
  }
  // The algorithm that would run, as the hot path finds it; empty: none.
  ffi::String choice(ffi::String op, ffi::String dtype, ffi::String redop, int64_t bytes,
                     bool symmetric, bool graph) {
    return guarded([&]() -> ffi::String {
      const Call call{op_named(op), static_cast<DType>(dtype_named(dtype)),
                      static_cast<RedOp>(redop_named(redop))};
      return target_->group->choice(graph ? Mode::graph : Mode::eager, call,
                                    static_cast<size_t>(bytes), symmetric);
    });
  }
  // Calls from now on are, or are not, part of another one.
  void set_inner(bool inner) { target_->group->set_inner(inner); }

  ffi::Function bind(ffi::String name) {
    return guarded([&] { return bind_call(target_, name); });
  }
  // barrier has no tensor that would bring a stream along.
  void barrier(int64_t stream) {
    guarded([&] {
      target_->open();
      const Call call{Op::barrier, DType::u8};
      target_->group->run(call, 0, false, reinterpret_cast<CUstream>(stream));
    });
  }
  bool wait(int64_t stream, double wait_s) {
    return guarded(
        [&] { return target_->group->wait(reinterpret_cast<CUstream>(stream), wait_s); });
  }

  // One-dimensional bytes in the arena; the tensor keeps the group alive.
  ffi::Tensor empty(int64_t bytes) {
    guarded([&] {
      if (!target_->group->has_arena())
        fail("Unsupported", "empty() needs symmetric memory, which this communicator has not");
    });
    return arena_tensor(target_, bytes, target_->device());
  }

  void serve_pool(bool on) {
    guarded([&] {
      if (!on) return binding::serve_pool(nullptr);
      target_->open();
      if (!target_->group->has_arena())
        fail("Unsupported", "symmetric() needs symmetric memory, which this communicator has not");
      binding::serve_pool(target_);
    });
  }

  void check() {
    guarded([&] {
      target_->open();
      target_->group->inspect();
    });
  }
  void abort(ffi::String why) {
    if (!target_->closed()) guarded([&] { target_->group->abort(why); });
  }
  // In a forked child: the memory is the parent's to close.
  void abandon() {
    target_->close();
    target_->group->abandon();
  }
  // Whether all ranks closed together within `wait_s`, so that everything could go.
  bool close(double wait_s) {
    if (target_->closed()) return true;
    target_->close();
    return guarded([&] { return target_->group->close(wait_s); });
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("commlib.NcclGroup", NcclGroup, ffi::Object);

 private:
  NcclTargetPtr target_ = std::make_shared<NcclTarget>();
};

ffi::ObjectRef open_group(int64_t comm, int64_t rank, int64_t world, int64_t device,
                          double timeout_s, int64_t user_bytes) {
  return ffi::ObjectRef(
      ffi::make_object<NcclGroup>(comm, rank, world, device, timeout_s, user_bytes));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<NcclGroup>()
      .def("set_up", &NcclGroup::set_up)
      .def("without_arena", &NcclGroup::without_arena)
      .def("start", &NcclGroup::start)
      .def("learn", &NcclGroup::learn)
      .def("set_plan", &NcclGroup::set_plan)
      .def("choice", &NcclGroup::choice)
      .def("set_inner", &NcclGroup::set_inner)
      .def("bind", &NcclGroup::bind)
      .def("barrier", &NcclGroup::barrier)
      .def("wait", &NcclGroup::wait)
      .def("empty", &NcclGroup::empty)
      .def("serve_pool", &NcclGroup::serve_pool)
      .def("check", &NcclGroup::check)
      .def("abort", &NcclGroup::abort)
      .def("abandon", &NcclGroup::abandon)
      .def("close", &NcclGroup::close);
  refl::GlobalDef()
      .def("commlib.nccl.open", open_group)
      .def("commlib.nccl.hint", [](ffi::String path) { nccl::nccl_hint(path); });
}

}  // namespace
}  // namespace commlib::binding
