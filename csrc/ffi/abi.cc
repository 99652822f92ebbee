#include "ffi/abi.h"

#include <dlfcn.h>

#include "commlib/check.h"

namespace commlib::ffi {
namespace {

template <class Function>
Function* find(const char* name) {
  void* const library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const symbol = library ? dlsym(library, name) : nullptr;
  if (!symbol) fail("Unsupported", "no tvm-ffi 0.1 is loaded in this process: there is no ", name);
  return reinterpret_cast<Function*>(symbol);
}

struct ErrorWords {  // the head of TVMFFIErrorCell
  Bytes kind, message;
};

}  // namespace

void* stream_of(int32_t device_type, int32_t device) {
  static auto* const get = find<void*(int32_t, int32_t)>("TVMFFIEnvGetStream");
  return get(device_type, device);
}

void* exchange_stream(int32_t device_type, int32_t device, void* stream) {
  static auto* const set = find<int(int32_t, int32_t, void*, void**)>("TVMFFIEnvSetStream");
  void* before = nullptr;
  set(device_type, device, stream, &before);
  return before;
}

void set_error(const char* kind, const char* message) {
  static auto* const set = find<void(const char*, const char*)>("TVMFFIErrorSetRaisedFromCStr");
  set(kind, message);
}

void call(void* function, const Any* values, int32_t count) {
  static auto* const run = find<int(void*, const Any*, int32_t, Any*)>("TVMFFIFunctionCall");
  static auto* const take = find<void(void**)>("TVMFFIErrorMoveFromRaised");
  static auto* const drop = find<int(void*)>("TVMFFIObjectDecRef");
  Any result{};
  if (run(function, values, count, &result) == 0) return;
  void* error = nullptr;
  take(&error);
  const auto& words = content<ErrorWords>(error);
  const Failure failure({words.kind.data, words.kind.size},
                        {words.message.data, words.message.size});
  drop(error);
  throw failure;
}

}  // namespace commlib::ffi
