#include "binding/interpreter.h"

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

void take_interpreter(void* state) {
  python::or_stay([&] { PyEval_RestoreThread(state); });
}

void connect_interpreter() {
  shm::Waiter::hooks = {signal_raised, PyEval_SaveThread, take_interpreter};
}

}  // namespace commlib::binding
