#include "binding/entry.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace commlib::binding {
namespace {

using SaveThread = void* (*)();
using RestoreThread = void (*)(void*);

RestoreThread restore_thread = nullptr;

// Python answers signals on its main thread alone.
bool signal_raised() { return syscall(SYS_gettid) == getpid() && TVMFFIEnvCheckSignals() != 0; }

// A thread that comes back while the interpreter ends is made to exit, which Python before 3.14
// does by unwinding its stack: through frames that may not throw. It stays here instead, and goes
// with the process.
void take_interpreter(void* state) {
  try {
    restore_thread(state);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

}  // namespace

void connect_interpreter() {
  // Both are in the stable ABI, and the interpreter is in the process already: no headers, no
  // link-time dependency.
  const auto save = reinterpret_cast<SaveThread>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
  restore_thread = reinterpret_cast<RestoreThread>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
  if (!save || !restore_thread)
    fail("Unsupported", "this process has no Python interpreter with the stable ABI");
  shm::Waiter::hooks = {signal_raised, save, take_interpreter};
}

}  // namespace commlib::binding
