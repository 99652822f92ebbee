// What every entry point from Python does around its work: the interpreter's lock and the
// translation of errors.
#pragma once

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include "commlib/check.h"
#include "shm/wait.h"

namespace commlib::binding {

// Calls enter with the interpreter's lock held (its release costs 45 ns): a short call keeps it
// until a wait becomes long, a call that moves much gives it up at once.
class InterpreterLock {
 public:
  static constexpr size_t kKeepBelowBytes = 64 << 10;

  explicit InterpreterLock(size_t bytes) {
    const auto& hooks = shm::Waiter::hooks;
    if (!hooks.release) return;
    if (bytes < kKeepBelowBytes) {
      shm::Waiter::holds_interpreter = true;
      kept_ = true;
    } else {
      state_ = hooks.release();
    }
  }
  ~InterpreterLock() {
    if (state_) shm::Waiter::hooks.reacquire(state_);
    if (kept_) shm::Waiter::holds_interpreter = false;
  }
  InterpreterLock(const InterpreterLock&) = delete;
  InterpreterLock& operator=(const InterpreterLock&) = delete;

 private:
  void* state_ = nullptr;
  bool kept_ = false;
};

// Runs `work`; its failures become the Python errors they are named after.
template <class Work>
auto guarded(Work&& work) {
  try {
    return work();
  } catch (const Failure& failure) {
    throw tvm::ffi::Error(failure.kind(), failure.what(), "");
  } catch (const Interrupted&) {
    throw tvm::ffi::EnvErrorAlreadySet();
  }
}

// Finds the interpreter we run in; without one (a C++ test) calls simply hold no lock.
void connect_interpreter();

}  // namespace commlib::binding
