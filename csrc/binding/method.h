// How a typed C++ function becomes a function of commlib._native, or a method of a class of it:
// its arguments are taken from Python objects by their types (From), its result becomes one (To).
//
//   int64_t tokens_of(const Tensor& lengths);
//   COMMLIB_MODULE(module) { module.add({COMMLIB_METHOD("tokens_of", tokens_of, "lengths")}); }
//
// The documentation of each names its types and where it stands; binding/stub.py writes
// commlib/_native.pyi from it. What C++ knows as any object, has its type as the last argument of
// COMMLIB_METHOD: those of the arguments and then of the result, between semicolons.
// Adding a type of argument: a specialisation of From.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "binding/array.h"
#include "binding/python.h"
#include "binding/tensor.h"
#include "ffi/abi.h"

namespace commlib::binding {

using python::Argument;
using python::Object;
using python::Size;

// `take` makes the C++ value of a Python object or throws, or that of a value of tvm-ffi's
// (binding/ffi.h); `name` is what Python calls the type.
template <class T>
struct From;

using ffi::Any;
[[noreturn]] void refuse(const Any& value, const Argument& argument, const char* wanted);

template <>
struct From<Object*> {
  static std::string name() { return "object"; }
  static Object* take(Object* object, const Argument&) { return object; }
};
template <>
struct From<Tensor> {
  static std::string name() { return "Tensor"; }
  static Tensor take(Object* object, const Argument& argument) { return {object, argument}; }
  static Tensor take(const Any& value, const Argument& argument) {
    if (value.type == ffi::kTensorView)
      return {*static_cast<const TensorFields*>(value.pointer), argument};
    if (value.type == ffi::kTensor) return {ffi::content<TensorFields>(value.pointer), argument};
    refuse(value, argument, "a tensor");
  }
};
template <>
struct From<Array> {
  static std::string name() { return "Integers"; }
  static Array take(Object* object, const Argument& argument) { return Array(object, argument); }
  static Array take(const Any& value, const Argument& argument) {
    return Array(From<Tensor>::take(value, argument), argument);
  }
};
template <>
struct From<int64_t> {
  static std::string name() { return "int"; }
  static int64_t take(Object* object, const Argument& argument) {
    return python::integer(object, argument);
  }
  static int64_t take(const Any& value, const Argument& argument) {
    if (value.type != ffi::kInt && value.type != ffi::kBool) refuse(value, argument, "an int");
    return value.integer;
  }
};
template <>
struct From<double> {
  static std::string name() { return "float"; }
  static double take(Object* object, const Argument& argument);
  static double take(const Any& value, const Argument& argument) {
    return value.type == ffi::kFloat ? value.number
                                     : static_cast<double>(From<int64_t>::take(value, argument));
  }
};
template <>
struct From<bool> {
  static std::string name() { return "bool"; }
  static bool take(Object* object, const Argument&) {
    if (object == &_Py_TrueStruct || object == &_Py_FalseStruct) return object == &_Py_TrueStruct;
    const int value = PyObject_IsTrue(object);
    if (value < 0) throw python::Raised();
    return value != 0;
  }
  static bool take(const Any& value, const Argument& argument) {
    return value.type != ffi::kNone && From<int64_t>::take(value, argument) != 0;
  }
};
template <>
struct From<std::string> {
  static std::string name() { return "str"; }
  static std::string take(Object* object, const Argument& argument);
  static std::string take(const Any& value, const Argument& argument);
};
template <>
struct From<std::string_view> {  // borrowed
  static std::string name() { return "bytes"; }
  static std::string_view take(Object* object, const Argument& argument);
};
template <class T>
struct From<std::optional<T>> {
  static std::string name() { return From<T>::name() + " | None"; }
  static std::optional<T> take(Object* object, const Argument& argument) {
    if (python::is_none(object)) return std::nullopt;
    return std::optional<T>(From<T>::take(object, argument));
  }
  static std::optional<T> take(const Any& value, const Argument& argument) {
    if (value.type == ffi::kNone) return std::nullopt;
    return std::optional<T>(From<T>::take(value, argument));
  }
};
template <>
struct From<std::vector<int64_t>> {
  static std::string name() { return "Sequence[int]"; }
  static std::vector<int64_t> take(Object* object, const Argument& argument);
  static std::vector<int64_t> take(const Any& value, const Argument& argument);
};

// An object of a class of the module.
template <class T>
struct Instance {
  Object head;
  T* value;
};
template <class T>
Object* class_of = nullptr;
template <class T>
struct From<const T*> {
  static std::string name() { return T::kName; }
  static const T* take(Object* object, const Argument& argument) {
    if (object->type != class_of<T>)
      fail("TypeError", argument.name(), " is of type ", python::type_of(object), ", but must be ",
           T::kName);
    return reinterpret_cast<Instance<T>*>(object)->value;
  }
};

// `make` gives a new reference.
template <class T>
struct To;

template <>
struct To<void> {
  static std::string name() { return "None"; }
};
template <>
struct To<Object*> {
  static std::string name() { return "object"; }
  static Object* make(Object* object) { return object; }
};
template <>
struct To<bool> {
  static std::string name() { return "bool"; }
  static Object* make(bool value) {
    return python::again(value ? &_Py_TrueStruct : &_Py_FalseStruct);
  }
};
template <>
struct To<int64_t> {
  static std::string name() { return "int"; }
  static Object* make(int64_t value) { return python::number(value); }
};
template <>
struct To<std::string> {
  static std::string name() { return "str"; }
  static Object* make(const std::string& value) {
    return python::checked(
        PyUnicode_DecodeUTF8(value.data(), static_cast<Size>(value.size()), "replace"));
  }
};
template <class T>
struct To<std::unique_ptr<T>> {
  static std::string name() { return T::kName; }
  static Object* make(std::unique_ptr<T> value) {
    Object* made = python::checked(PyType_GenericAlloc(class_of<T>, 0));
    reinterpret_cast<Instance<T>*>(made)->value = value.release();
    return made;
  }
};

inline Argument after(Argument which) {
  ++which.at;
  return which;
}

// The arguments in their order, so that of two bad ones the first is named.
template <class... Args>
struct Taken {
  template <class Source>
  Taken(const Source*, Argument) {}
  template <class Use, class... Before>
  decltype(auto) into(const Use& use, Before&... before) {
    return use(before...);
  }
};
template <class First, class... Rest>
struct Taken<First, Rest...> {
  First first;
  Taken<Rest...> rest;
  template <class Source>
  Taken(const Source* args, Argument which)
      : first(From<First>::take(*args, which)), rest(args + 1, after(which)) {}
  template <class Use, class... Before>
  decltype(auto) into(const Use& use, Before&... before) {
    return rest.into(use, before..., first);
  }
};

[[noreturn]] void refuse_count(const char* name, const char* names, Size count, size_t needed);
// "(x: Tensor, dst: int) -> None", and below it where the function stands; never freed.
const char* document(const char* names, std::vector<std::string> types, const char* objects,
                     const char* file, const char* function);

// `Here` names one function: its arguments' names, its file.
template <class Here, class R, class... Args>
struct Entry {
  template <class Run>
  static Object* call(Object* const* args, Size count, const Run& run) {
    return python::entered([&]() -> Object* {
      if (count != static_cast<Size>(sizeof...(Args)))
        refuse_count(Here::name(), Here::names(), count, sizeof...(Args));
      Taken<std::decay_t<Args>...> taken(args, {Here::names(), 0, Here::name()});
      if constexpr (std::is_void_v<R>) {
        taken.into(run);
        return python::none();
      } else {
        return To<R>::make(taken.into(run));
      }
    });
  }
  static const char* doc() {
    return document(Here::names(), {From<std::decay_t<Args>>::name()..., To<R>::name()},
                    Here::objects(), Here::file(), Here::function());
  }
};

constexpr int kFastCall = 0x80;  // METH_FASTCALL

template <class Here, class R, class... Args>
PyMethodDef method_of(R (*)(Args...)) {
  const auto call = [](Object*, Object* const* args, Size count) {
    return Entry<Here, R, Args...>::call(args, count, Here::target());
  };
  return {Here::name(), call, kFastCall, Entry<Here, R, Args...>::doc()};
}
template <class Here, class T, class R, class... Args>
PyMethodDef method_of(R (T::*)(Args...)) {
  const auto call = [](Object* self, Object* const* args, Size count) {
    T& value = *reinterpret_cast<Instance<T>*>(self)->value;
    return Entry<Here, R, Args...>::call(args, count, [&](auto&... arguments) -> R {
      return (value.*Here::target())(arguments...);
    });
  };
  return {Here::name(), call, kFastCall, Entry<Here, R, Args...>::doc()};
}

#define COMMLIB_ENTRY(maker, python_name, target_function, argument_names, object_types) \
  [] {                                                                                   \
    struct Here {                                                                        \
      static constexpr const char* name() { return python_name; }                        \
      static constexpr const char* names() { return argument_names; }                    \
      static constexpr const char* objects() { return object_types; }                    \
      static constexpr const char* file() { return __FILE__; }                           \
      static constexpr const char* function() { return #target_function; }               \
      static constexpr auto target() { return &target_function; }                        \
    };                                                                                   \
    return ::commlib::binding::maker<Here>(Here::target());                              \
  }()
#define COMMLIB_METHOD(python_name, target_function, argument_names, ...) \
  COMMLIB_ENTRY(method_of, python_name, target_function, argument_names, "" __VA_ARGS__)

// The module while it is made.
class Module {
 public:
  explicit Module(Object* module) : module_(module) {}
  void add(std::vector<PyMethodDef> functions);
  // T::kName is its name; Python cannot make one, functions return it.
  template <class T>
  void add_class(std::vector<PyMethodDef> methods) {
    class_of<T> = make_class(T::kName, sizeof(Instance<T>), std::move(methods), [](Object* self) {
      delete reinterpret_cast<Instance<T>*>(self)->value;
      Object* const type = self->type;
      PyObject_Free(self);
      Py_DecRef(type);
    });
  }

 private:
  Object* make_class(const char* name, int bytes, std::vector<PyMethodDef> methods,
                     void (*drop)(Object*));

  Object* module_;
};

// Called when Python imports the module; one in each file that has something for it.
struct Registered {
  explicit Registered(void (*add)(Module&));
};
#define COMMLIB_MODULE(module)                                    \
  static void add_to(::commlib::binding::Module& module);         \
  static const ::commlib::binding::Registered registered(add_to); \
  static void add_to(::commlib::binding::Module& module)

}  // namespace commlib::binding
