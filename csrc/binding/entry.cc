#include "binding/entry.h"

#include <dlfcn.h>

namespace commlib::binding {
namespace {

using SaveThread = void* (*)();
using RestoreThread = void (*)(void*);

bool signal_raised() { return TVMFFIEnvCheckSignals() != 0; }

}  // namespace

void connect_interpreter() {
  // Both are in the stable ABI, and the interpreter is in the process already: no headers, no
  // link-time dependency.
  const auto save = reinterpret_cast<SaveThread>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
  const auto restore = reinterpret_cast<RestoreThread>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
  if (!save || !restore)
    fail("Unsupported", "this process has no Python interpreter with the stable ABI");
  shm::Waiter::hooks = {signal_raised, save, restore};
}

}  // namespace commlib::binding
