// The nccl backend for Python: the object for set-up and control.
#include <memory>
#include <string>
#include <vector>

#include "binding/calls.h"
#include "binding/interpreter.h"
#include "binding/method.h"
#include "binding/nccl_target.h"

namespace commlib::binding {
namespace {

using nccl::Group;

class NcclGroup {
 public:
  static constexpr const char* kName = "NcclGroup";

  NcclGroup(int64_t comm, int64_t rank, int64_t world, int64_t device, double timeout_s,
            int64_t user_bytes, int64_t multiprocessors, int64_t max_sms, bool first) {
    target_->place(static_cast<int>(rank), static_cast<int>(world), static_cast<int>(device));
    target_->group = std::make_unique<Group>(Group::Settings{
        reinterpret_cast<nccl::ncclComm_t>(comm), static_cast<int>(rank), static_cast<int>(world),
        timeout_s, Allocator::size(user_bytes), static_cast<unsigned>(multiprocessors),
        static_cast<unsigned>(max_sms), first});
  }

  // Symmetric memory, one step at a time: between them the ranks tell each other how it went.
  void set_up(const std::string& step, int64_t nonce) {
    const Unlocked unlocked;
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
  }
  void without_arena(const std::string& why) { target_->group->without_arena(why); }

  // `build(source, algorithm, dtype, form, epilogue)` returns (cubin, symbol) of a kernel.
  void start(const std::vector<int64_t>& pids, int64_t id, Object* build) {
    const python::Callback callback(build);
    const Unlocked unlocked;
    target_->group->start({pids.begin(), pids.end()}, static_cast<uint64_t>(id),
                          [callback](const nccl::Kernel& kernel, const char* dtype,
                                     const std::string& form, const std::string& epilogue) {
                            const auto [code, symbol] =
                                callback({kernel.source, kernel.name, dtype, form, epilogue});
                            return Cubin{code, symbol};
                          });
  }

  // Every algorithm of this backend, as its row says it; then the plan that chooses among them.
  void learn(const std::string& rows) { target_->group->learn(rows); }
  void set_plan(const std::string& plan) { target_->group->set_plan(plan); }
  // Calls from now on are, or are not, part of another one.
  void set_inner(bool inner) { target_->group->set_inner(inner); }

  std::unique_ptr<Calls> calls() { return std::make_unique<Calls>(Calls{target_}); }

  // One-dimensional bytes in the arena; the tensor keeps the group alive.
  Object* empty(int64_t bytes) {
    if (!target_->group->has_arena())
      fail("Unsupported", "empty() needs symmetric memory, which this communicator does not have");
    return arena_tensor(target_, bytes, target_->device());
  }

  void serve_pool(bool on) {
    if (!on) return binding::serve_pool(nullptr);
    target_->open();
    if (!target_->group->has_arena())
      fail("Unsupported",
           "symmetric() needs symmetric memory, which this communicator does not have");
    binding::serve_pool(target_);
  }

  // Whether a tensor lies in the arena.
  bool holds(const Tensor& x) {
    const auto bytes = static_cast<size_t>(x.numel() * x.item_bytes());
    return target_->group->has_arena() && target_->group->arena().offset_of(x.data(), bytes) >= 0;
  }

  // Stamps the calls from now on: a tensor of what Stamps keeps. Room for none: no longer.
  Object* stamp(int64_t room) {
    target_->open();
    return stamped(*target_, room);
  }
  // What the kernel of the last call has marked, where the device writes it; None without marks.
  Object* marks() {
    const Function& kernel = target_->group->stamped();
    if (!kernel.marks) return python::none();
    const auto words = static_cast<int64_t>(kernel.mark_bytes / sizeof(int64_t));
    return tensor_over(reinterpret_cast<void*>(kernel.marks), words, {kInt, 64, 1},
                       target_->device(), [] {});  // modules stay
  }

  void check() {
    target_->open();
    const Unlocked unlocked;
    target_->group->inspect();
  }
  void abort(const std::string& why) {
    if (target_->closed()) return;
    const Unlocked unlocked;
    target_->group->abort(why);
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
    const Unlocked unlocked;
    return target_->group->close(wait_s);
  }

 private:
  NcclTargetPtr target_ = std::make_shared<NcclTarget>();
};

std::unique_ptr<NcclGroup> open_nccl(int64_t comm, int64_t rank, int64_t world, int64_t device,
                                     double timeout_s, int64_t user_bytes, int64_t multiprocessors,
                                     int64_t max_sms, bool first) {
  const Unlocked unlocked;
  return std::make_unique<NcclGroup>(comm, rank, world, device, timeout_s, user_bytes,
                                     multiprocessors, max_sms, first);
}

void hint_nccl(const std::string& path) { nccl::nccl_hint(path); }

COMMLIB_MODULE(module) {
  module.add({
      COMMLIB_METHOD(
          "open_nccl", open_nccl,
          "comm, rank, world, device, timeout_s, user_bytes, multiprocessors, max_sms, first"),
      COMMLIB_METHOD("hint_nccl", hint_nccl, "path"),
  });
  module.add_class<NcclGroup>({
      COMMLIB_METHOD("set_up", NcclGroup::set_up, "step, nonce"),
      COMMLIB_METHOD("without_arena", NcclGroup::without_arena, "why"),
      COMMLIB_METHOD("start", NcclGroup::start, "pids, id, build",
                     "Callable[[str, str, str, str, str], tuple[bytes, str]]"),
      COMMLIB_METHOD("learn", NcclGroup::learn, "rows"),
      COMMLIB_METHOD("set_plan", NcclGroup::set_plan, "plan"),
      COMMLIB_METHOD("set_inner", NcclGroup::set_inner, "inner"),
      COMMLIB_METHOD("calls", NcclGroup::calls, ""),
      COMMLIB_METHOD("empty", NcclGroup::empty, "num_bytes", "Tensor"),
      COMMLIB_METHOD("holds", NcclGroup::holds, "x"),
      COMMLIB_METHOD("serve_pool", NcclGroup::serve_pool, "on"),
      COMMLIB_METHOD("stamp", NcclGroup::stamp, "room", "Tensor | None"),
      COMMLIB_METHOD("marks", NcclGroup::marks, "", "Tensor | None"),
      COMMLIB_METHOD("check", NcclGroup::check, ""),
      COMMLIB_METHOD("abort", NcclGroup::abort, "why"),
      COMMLIB_METHOD("abandon", NcclGroup::abandon, ""),
      COMMLIB_METHOD("close", NcclGroup::close, "wait_s"),
  });
}

}  // namespace
}  // namespace commlib::binding
