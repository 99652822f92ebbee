// How a typed C++ function becomes one that tvm-ffi finds in this library by its name. Arguments
// that are left out are None.
//
//   COMMLIB_FFI_FUNCTION(prefix_match, match, "a, b, page_size")
//   COMMLIB_FFI_COLLECTIVE(broadcast, "x, src")  // a communicator's handle comes before x
//
// A call holds the interpreter's lock, as one of Python does, and its stream is tvm-ffi's.
#pragma once

#include <algorithm>

#include "binding/method.h"
#include "binding/target.h"

namespace commlib::binding {

template <>
struct From<TargetPtr> {  // by its handle
  static TargetPtr take(const Any& value, const Argument& argument);
};

// Makes what is being thrown tvm-ffi's error. Called in a catch block.
void set_ffi_error() noexcept;

template <class Here, class... Types, class Run>
int entered_by_ffi(const Any* first, int32_t count, const Run& run) noexcept {
  const python::Held lock;
  const bool before = std::exchange(on_stream_of_ffi, true);
  int status = 0;
  try {
    constexpr int32_t kLimit = sizeof...(Types);
    if (count > kLimit) refuse_count(Here::name(), Here::names(), count, kLimit);
    Any values[kLimit + 1] = {};
    std::copy_n(first, count, values);
    Taken<Types...>(values, {Here::names(), 0, Here::name()}).into(run);
  } catch (...) {
    set_ffi_error();
    status = -1;
  }
  on_stream_of_ffi = before;
  return status;
}

template <class Here, class R, class... Args>
int function_of_ffi(R (*function)(Args...), const Any* first, int32_t count, Any* result) {
  return entered_by_ffi<Here, std::decay_t<Args>...>(first, count, [&](auto&... arguments) {
    if constexpr (std::is_void_v<R>) {
      function(arguments...);
    } else {
      *result = ffi::integer(function(arguments...));
    }
  });
}
template <class Here, class R, class... Args>
int collective_of_ffi(R (*function)(Target&, Args...), const Any* first, int32_t count) {
  return entered_by_ffi<Here, TargetPtr, std::decay_t<Args>...>(
      first, count, [&](const TargetPtr& target, auto&... arguments) {
        const During inside(target->stamps, Phase::native);
        function(*target, arguments...);
      });
}

#define COMMLIB_FFI_EXPORT(exported, argument_names, call)                                      \
  extern "C" COMMLIB_API int __tvm_ffi_##exported(void*, const ::commlib::ffi::Any* values,     \
                                                  int32_t count, ::commlib::ffi::Any* result) { \
    struct Here {                                                                               \
      static constexpr const char* name() { return #exported; }                                 \
      static constexpr const char* names() { return argument_names; }                           \
    };                                                                                          \
    *result = {};                                                                               \
    return call;                                                                                \
  }
#define COMMLIB_FFI_FUNCTION(exported, function, argument_names) \
  COMMLIB_FFI_EXPORT(exported, argument_names,                   \
                     ::commlib::binding::function_of_ffi<Here>(&function, values, count, result))
#define COMMLIB_FFI_COLLECTIVE(function, argument_names)  \
  COMMLIB_FFI_EXPORT(function, "handle, " argument_names, \
                     ::commlib::binding::collective_of_ffi<Here>(&function, values, count))

}  // namespace commlib::binding
