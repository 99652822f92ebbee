#include "binding/interpreter.h"

#include <cxxabi.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace commlib::binding {
namespace {

// Python answers signals on its main thread alone.
bool signal_raised() {
  if (syscall(SYS_gettid) != getpid()) return false;
  const int state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return raised;
}

}  // namespace

// A thread that comes back while the interpreter ends is made to exit, which Python before 3.14
// does by unwinding its stack: through frames that may not throw. It stays here instead, and goes
// with the process.
void take_interpreter(void* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

void connect_interpreter() {
  shm::Waiter::hooks = {signal_raised, PyEval_SaveThread, take_interpreter};
}

}  // namespace commlib::binding
