// The collectives of one communicator for Python, which commlib/communicator.py calls. Each is a
// function in csrc/collectives/<collective>/entry.cc that checks its tensors, then runs the
// operation:
//
//   void broadcast(Target& target, const Tensor& x, int64_t src) { … }
//   COMMLIB_COLLECTIVE(broadcast, "x, src");
//
// A collective may be given one argument more: the multiprocessors that the call takes at most, or
// -1 for a call that spares the GPU (kSparing). tvm-ffi finds them, too, with a communicator's
// handle ahead of the arguments (binding/ffi.h).
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "binding/arguments.h"
#include "binding/ffi.h"
#include "binding/method.h"
#include "binding/target.h"
#include "record/record.h"

namespace commlib::binding {

// Keeps what the rank holds alive, also past close(): calls then say that it is closed.
struct Calls {
  static constexpr const char* kName = "Calls";

  TargetPtr target;
};

template <>
struct From<RedOp> {
  static std::string name() { return "RedOp"; }
  static RedOp take(Object* object, const Argument&);
  static RedOp take(const Any& value, const Argument& argument);
};

// Keeps where in the program this thread's call is made, if a reader of the record wants that.
void keep_site();

void reducible(const Target& target, const Buffer& x, RedOp redop);

inline Call make_call(Op op, const Buffer& x, const Buffer& out, size_t count,
                      RedOp redop = RedOp::sum, int64_t root = 0) {
  Call call;
  call.op = op;
  call.dtype = x.dtype;
  call.redop = redop;
  call.root = static_cast<int>(root);
  call.in = x.data;
  call.out = out.data;
  call.count = count;
  return call;
}

template <class Here, class R, class... Args>
Object* run_on(Target& target, Object* const* args, Size count) {
  return Entry<Here, R, Args...>::call(
      args, count, [&](auto&... arguments) -> R { return Here::target()(target, arguments...); });
}
template <class Here, bool kLimits, class R, class... Args>
PyMethodDef entry_of(R (*)(Target&, Args...)) {
  constexpr Size kAll = sizeof...(Args);
  const auto call = [](Object* self, Object* const* args, Size count) -> Object* {
    Target& target = *reinterpret_cast<Instance<Calls>*>(self)->value->target;
    const During inside(target.stamps, Phase::native);
    if (__builtin_expect(record::Record::wants_sites(), 0)) keep_site();
    if (kLimits && __builtin_expect(count == kAll + 1, 0)) {
      return python::entered([&] {
        const Argument last = {Here::names(), static_cast<int>(kAll), Here::name()};
        Limited limited(target, From<int64_t>::take(args[kAll], last));
        return run_on<Here, R, Args...>(limited, args, kAll);
      });
    }
    return run_on<Here, R, Args...>(target, args, count);
  };
  const auto document =
      kLimits ? Entry<Here, R, Args..., int64_t>::doc : Entry<Here, R, Args...>::doc;
  return {Here::name(), call, kFastCall, document()};
}
template <class Here, class Function>
PyMethodDef call_of(Function target) {
  return entry_of<Here, false>(target);
}
template <class Here, class Function>
PyMethodDef collective_of(Function target) {
  return entry_of<Here, true>(target);
}

struct RegisteredCall {
  explicit RegisteredCall(PyMethodDef method);
};
#define COMMLIB_METHOD_OF_CALLS(maker, function, argument_names, ...) \
  static const ::commlib::binding::RegisteredCall call_##function(    \
      COMMLIB_ENTRY(maker, #function, function, argument_names, "" __VA_ARGS__))
#define COMMLIB_CALL(function, argument_names)     \
  COMMLIB_FFI_COLLECTIVE(function, argument_names) \
  COMMLIB_METHOD_OF_CALLS(call_of, function, argument_names)
#define COMMLIB_COLLECTIVE(function, argument_names, ...) \
  COMMLIB_FFI_COLLECTIVE(function, argument_names)        \
  COMMLIB_METHOD_OF_CALLS(collective_of, function, argument_names ", max_sms", "" __VA_ARGS__)

}  // namespace commlib::binding
