#include "binding/direct.h"

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <memory>

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;
using python::api;
using python::Object;
using python::Size;

constexpr Size kMostArguments = 16;

struct Arguments {
  ffi::AnyView values[kMostArguments];
  DLTensor tensors[kMostArguments];

  void take(Size at, Object* object) {
    if (python::is_none(object)) {
      values[at] = nullptr;
      return;
    }
    Object* const type = api.PyObject_Type(object);
    api.Py_DecRef(type);  // the object holds it
    if (type == api.tensor_class || type == api.parameter_class) {
      take_tensor(at, object);
    } else if (type == api.PyBool_Type) {
      values[at] = object == api._Py_TrueStruct;
    } else if (type == api.PyLong_Type) {
      values[at] = integer(at, object);
    } else if (type == api.PyUnicode_Type) {
      Size size = 0;
      const char* text = api.PyUnicode_AsUTF8AndSize(object, &size);
      if (!text) throw python::Raised();
      values[at] = text;
    } else if (is(object, api.tensor_class)) {
      take_tensor(at, object);
    } else if (is(object, api.PyFloat_Type)) {
      values[at] = api.PyFloat_AsDouble(object);
    } else {
      values[at] = integer(at, object);
    }
  }

 private:
  static int64_t integer(Size at, Object* object) {
    const long long value = api.PyLong_AsLongLong(object);
    if (value != -1 || !api.PyErr_Occurred()) return value;
    api.PyErr_Clear();  // again, with a name that costs more than the call
    return python::integer(object, text("argument ", at, " of a native function").c_str());
  }
  void take_tensor(Size at, Object* object) {
    if (api.torch->dltensor_from_py_object_no_sync(object, &tensors[at]) != 0)
      throw python::Raised();
    values[at] = &tensors[at];
  }
  // Slow: it asks the class.
  static bool is(Object* object, Object* type) {
    const int is = api.PyObject_IsInstance(object, type);
    if (is < 0) throw python::Raised();
    return is != 0;
  }
};

Object* result_of(const ffi::Any& result) {
  if (result.type_index() == ffi::TypeIndex::kTVMFFIBool)
    return python::again(result.cast<bool>() ? api._Py_TrueStruct : api._Py_FalseStruct);
  if (result.type_index() == ffi::TypeIndex::kTVMFFIInt)
    return python::number(result.cast<int64_t>());
  return python::none();
}

constexpr const char* kCapsule = "commlib.direct";

Object* call(Object* self, Object* const* given, Size count) {
  return python::entered([&] {
    const auto* function =
        static_cast<const ffi::Function*>(api.PyCapsule_GetPointer(self, kCapsule));
    if (count > kMostArguments)
      fail("TypeError", "native call with ", count, " arguments, more than ", kMostArguments);
    Arguments arguments;
    for (Size i = 0; i < count; ++i) arguments.take(i, given[i]);
    ffi::Any result;
    try {
      function->CallPacked(arguments.values, static_cast<int32_t>(count), &result);
    } catch (const ffi::Error& error) {
      if (error.kind() == "EnvErrorAlreadySet") throw python::Raised();
      throw Failure(error.kind(), error.message());
    }
    return result_of(result);
  });
}

python::Method method = {"direct", call, python::kFastCall, nullptr};

}  // namespace

python::Object* direct(python::Object*, python::Object* const* given, python::Size count) {
  return python::entered([&] {
    python::takes(count, 1);
    Size size = 0;
    const char* name = api.PyUnicode_AsUTF8AndSize(given[0], &size);
    if (!name) throw python::Raised();
    const auto found = ffi::Function::GetGlobal(name);
    if (!found) fail("ValueError", "no native function has the name ", name);
    // Never dropped: who asks keeps it for the life of the process.
    auto* function = std::make_unique<ffi::Function>(*found).release();
    const python::Owned self(python::checked(api.PyCapsule_New(function, kCapsule, nullptr)));
    return python::checked(api.PyCFunction_NewEx(&method, self.get(), nullptr));
  });
}

}  // namespace commlib::binding
