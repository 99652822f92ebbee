// Python's stable ABI, as far as native code uses it. The interpreter that loads the module
// resolves these names: no headers, no link-time dependency, one library for every Python.
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "commlib/check.h"

extern "C" {
struct PyObject {
  ptrdiff_t references;
  PyObject* type;
};
struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject* self, PyObject* const* arguments, ptrdiff_t count);
  int flags;
  const char* doc;
};
struct PyModuleDef {
  PyObject head;
  PyObject* (*init)();
  ptrdiff_t index;
  PyObject* copy;
  const char *name, *doc;
  ptrdiff_t size;
  PyMethodDef* methods;
  void *slots, *traverse, *clear, *free;
};
struct PyType_Slot {
  int slot;
  void* value;
};
struct PyType_Spec {
  const char* name;
  int basic_size, item_size;
  unsigned flags;
  PyType_Slot* slots;
};
struct Py_buffer {
  void* data;
  PyObject* owner;
  ptrdiff_t bytes, item_bytes;
  int readonly, ndim;
  char* format;
  ptrdiff_t *shape, *strides, *suboffsets;
  void* internal;
};

extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern PyObject PyTuple_Type, PyList_Type, PyUnicode_Type;
extern PyObject *PyExc_RuntimeError, *PyExc_MemoryError;

PyObject* PyModule_Create2(PyModuleDef*, int api_version);
int PyModule_AddFunctions(PyObject*, PyMethodDef*);
int PyModule_AddObject(PyObject*, const char*, PyObject*);
PyObject* PyType_FromSpec(PyType_Spec*);
void* PyType_GetSlot(PyObject*, int);
PyObject* PyType_GenericAlloc(PyObject*, ptrdiff_t);
void PyObject_Free(void*);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
int PyObject_IsInstance(PyObject*, PyObject*);
int PyObject_IsTrue(PyObject*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
PyObject* PyObject_CallMethod(PyObject*, const char*, const char*, ...);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
int PyObject_CheckBuffer(PyObject*);
int PyObject_GetBuffer(PyObject*, Py_buffer*, int);
void PyBuffer_Release(Py_buffer*);
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyObject_Repr(PyObject*);
PyObject* PyObject_Str(PyObject*);
PyObject* PyUnicode_DecodeUTF8(const char*, ptrdiff_t, const char*);
PyObject* PyUnicode_AsEncodedString(PyObject*, const char*, const char*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, ptrdiff_t*);
PyObject* PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyBytes_FromStringAndSize(const char*, ptrdiff_t);
int PyBytes_AsStringAndSize(PyObject*, char**, ptrdiff_t*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyImport_ImportModule(const char*);
PyObject* PyTuple_New(ptrdiff_t);
int PyTuple_SetItem(PyObject*, ptrdiff_t, PyObject*);
PyObject* PyDict_GetItemWithError(PyObject*, PyObject*);
ptrdiff_t PySequence_Size(PyObject*);
PyObject* PySequence_GetItem(PyObject*, ptrdiff_t);
PyObject* PyErr_Occurred();
void PyErr_Clear();
void PyErr_SetString(PyObject*, const char*);
void PyErr_SetObject(PyObject*, PyObject*);
int PyErr_CheckSignals();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
int PyGILState_Ensure();
void PyGILState_Release(int);
}

namespace commlib::binding::python {

using Object = PyObject;
using Size = ptrdiff_t;

// Runs what may take the interpreter's lock. A thread that does so while the interpreter ends is
// made to exit, by Python before 3.14 by unwinding its stack: through frames that may not throw, or
// that need the lock. It stays here instead, and goes with the process.
template <class Work>
auto or_stay(Work&& work) {
  try {
    return work();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// The interpreter's lock, whether this thread has it already or not.
class Held {
 public:
  Held() : state_(or_stay(PyGILState_Ensure)) {}
  ~Held() { PyGILState_Release(state_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  int state_;
};

// The Python error is set already.
class Raised : public std::exception {};

inline Object* checked(Object* object) {
  if (!object) throw Raised();
  return object;
}

// Owns one reference.
class Owned {
 public:
  explicit Owned(Object* object) : object_(checked(object)) {}
  ~Owned() {
    if (object_) Py_DecRef(object_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Object* get() const { return object_; }
  Object* give() {
    Object* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  Object* object_;
};

inline Object* again(Object* object) {
  Py_IncRef(object);
  return object;
}
inline Object* none() { return again(&_Py_NoneStruct); }
inline bool is_none(Object* object) { return object == &_Py_NoneStruct; }
inline Object* number(int64_t value) { return checked(PyLong_FromLongLong(value)); }
inline Object* bytes(std::string_view value) {
  return checked(PyBytes_FromStringAndSize(value.data(), static_cast<Size>(value.size())));
}

// A tuple of references that it takes over.
template <class... Items>
Object* tuple(Items... items) {
  Object* made = checked(PyTuple_New(sizeof...(items)));
  Size at = 0;
  (PyTuple_SetItem(made, at++, items), ...);
  return made;
}

// Makes instances of a named tuple: tuple.__new__(type, items), without the function of Python
// that its class puts in between.
class Named {
 public:
  explicit Named(Object* type)
      : type_(type), make_(reinterpret_cast<New>(PyType_GetSlot(&PyTuple_Type, kNew))) {}
  template <class... Items>
  Object* operator()(Items... items) const {
    const Owned arguments(tuple(tuple(items...)));
    return checked(make_(type_, arguments.get(), nullptr));
  }

 private:
  static constexpr int kNew = 65;  // Py_tp_new
  using New = Object* (*)(Object* type, Object* arguments, Object* named);
  Object* type_;
  New make_;
};

bool is_instance(Object* object, Object* type);
std::string type_of(Object* object);
// "a list", "an int", "a numpy array", "None".
std::string described(Object* object);
// As Python's repr() and str().
std::string repr(Object* object);
std::string str(Object* object);

// Which argument of a call it is, for the words of an error: one of "x, redop, out", or an item of
// it; and of which function, where that is known.
struct Argument {
  const char* names;
  int at = 0;
  const char* function = nullptr;
  Size item = -1;
  std::string name() const;
};

// An int, or what says that it is one (numpy's).
int64_t integer_of_other(Object* object, const Argument& argument);
inline int64_t integer(Object* object, const Argument& argument) {
  const long long value = PyLong_AsLongLong(object);
  return value != -1 || !PyErr_Occurred() ? value : integer_of_other(object, argument);
}

// Sets the Python error for what is being thrown: the class of commlib.errors, or Python's own,
// that a failure names. Called in a catch block.
void set_error() noexcept;

// Runs the work of an entry point; what it throws becomes the Python error.
template <class Work>
Object* entered(Work&& work) {
  try {
    return or_stay(work);
  } catch (...) {
    set_error();
    return nullptr;
  }
}

// A function of Python's that native code calls, from any thread, with or without the
// interpreter's lock; one reference, for the life of the process.
class Callback {
 public:
  Callback() = default;
  explicit Callback(Object* function) : function_(again(function)) {}
  explicit operator bool() const { return function_ != nullptr; }
  // Calls it with strings; it returns (bytes, str).
  std::pair<std::string, std::string> operator()(
      std::initializer_list<std::string_view> strings) const;

 private:
  Object* function_ = nullptr;
};

}  // namespace commlib::binding::python
