// The collectives of one communicator for Python, which commlib/methods.py calls. Each is a
// function in csrc/collectives/<collective>/entry.cc that checks its tensors, then runs the
// operation:
//
//   void broadcast(Target& target, const Tensor& x, int64_t src) { … }
//   COMMLIB_CALL(broadcast, "x, src");
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "binding/arguments.h"
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
  static std::string name() { return "object"; }
  static RedOp take(Object* object, const Argument&);
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
PyMethodDef call_of(R (*)(Target&, Args...)) {
  const auto call = [](Object* self, Object* const* given, Size count) {
    Target& target = *reinterpret_cast<Instance<Calls>*>(self)->value->target;
    const During inside(target.stamps, Phase::native);
    if (__builtin_expect(record::Record::wants_sites(), 0)) keep_site();
    return Entry<Here, R, Args...>::call(given, count, [&](auto&... arguments) -> R {
      return Here::target()(target, arguments...);
    });
  };
  return {Here::name(), call, kFastCall, Entry<Here, R, Args...>::doc()};
}

struct RegisteredCall {
  explicit RegisteredCall(PyMethodDef method);
};
#define COMMLIB_CALL(function, argument_names)                     \
  static const ::commlib::binding::RegisteredCall call_##function( \
      COMMLIB_ENTRY(call_of, #function, function, argument_names))

}  // namespace commlib::binding
