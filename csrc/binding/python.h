// The few functions of Python's stable ABI that native code calls itself: where a call must cost
// 50 ns and not 500. They are found in the running process: no headers, no link-time dependency,
// one wheel for every Python.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "commlib/check.h"

namespace commlib::binding::python {

struct Object;  // PyObject, whose insides are none of our business
using Size = ptrdiff_t;

struct Method {  // PyMethodDef
  const char* name;
  Object* (*function)(Object* self, Object* const* arguments, Size count);
  int flags;
  const char* doc;
};
constexpr int kFastCall = 0x80;  // METH_FASTCALL
constexpr int kNew = 65;         // Py_tp_new

struct View {  // Py_buffer
  void* data;
  Object* owner;
  Size bytes, item_bytes;
  int readonly, ndim;
  char* format;
  Size *shape, *strides, *suboffsets;
  void* internal;
};
constexpr int kViewWritable = 0x1, kViewFormat = 0x4, kViewStrides = 0x18;

struct Api {
  Object* (*PyCFunction_NewEx)(Method*, Object* self, Object* module);
  Object* (*PyCapsule_New)(void*, const char*, void (*)(Object*));
  void* (*PyCapsule_GetPointer)(Object*, const char*);
  int (*PyObject_CheckBuffer)(Object*);
  int (*PyObject_GetBuffer)(Object*, View*, int);
  void (*PyBuffer_Release)(View*);
  int (*PyObject_IsInstance)(Object*, Object*);
  int (*PyObject_IsTrue)(Object*);
  Object* (*PyObject_Type)(Object*);
  Object* (*PyObject_GetAttrString)(Object*, const char*);
  const char* (*PyUnicode_AsUTF8AndSize)(Object*, Size*);
  Object* (*PyLong_FromLongLong)(long long);
  long long (*PyLong_AsLongLong)(Object*);
  Object* (*PyBytes_FromStringAndSize)(const char*, Size);
  int (*PyBytes_AsStringAndSize)(Object*, char**, Size*);
  double (*PyFloat_AsDouble)(Object*);
  Object* (*PyImport_ImportModule)(const char*);
  Object* (*PyTuple_New)(Size);
  int (*PyTuple_SetItem)(Object*, Size, Object*);
  void* (*PyType_GetSlot)(Object*, int);
  Object* (*PyDict_New)();
  int (*PyDict_SetItemString)(Object*, const char*, Object*);
  Size (*PySequence_Size)(Object*);
  Object* (*PySequence_GetItem)(Object*, Size);
  Object* (*PyErr_Occurred)();
  void (*PyErr_Clear)();
  void (*PyErr_SetString)(Object*, const char*);
  void (*Py_IncRef)(Object*);
  void (*Py_DecRef)(Object*);
  Object* _Py_NoneStruct;  // None itself, and so on
  Object* _Py_TrueStruct;
  Object* _Py_FalseStruct;
  Object* PyTuple_Type;
  Object* PyBool_Type;
  Object* PyLong_Type;
  Object* PyUnicode_Type;
  Object* PyFloat_Type;
  Object** PyExc_RuntimeError;  // these hold the classes
  Object** PyExc_MemoryError;

  const DLPackExchangeAPI* torch;  // tensors without a Python call
  Object* tensor_class;            // torch.Tensor
  Object* parameter_class;         // its one subclass that is no more than it
};
extern Api api;

// Finds all of it once; called with the interpreter's lock held, as everything here.
void connect(const DLPackExchangeAPI* torch, Object* tensor_class, Object* parameter_class);

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
    if (object_) api.Py_DecRef(object_);
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
  api.Py_IncRef(object);
  return object;
}
inline Object* none() { return again(api._Py_NoneStruct); }
inline bool is_none(Object* object) { return object == api._Py_NoneStruct; }
inline Object* number(int64_t value) { return checked(api.PyLong_FromLongLong(value)); }
inline Object* bytes(std::string_view value) {
  return checked(api.PyBytes_FromStringAndSize(value.data(), static_cast<Size>(value.size())));
}

// A tuple of references that it takes over.
template <class... Items>
Object* tuple(Items... items) {
  Object* made = checked(api.PyTuple_New(sizeof...(items)));
  Size at = 0;
  (api.PyTuple_SetItem(made, at++, items), ...);
  return made;
}

// Makes instances of a named tuple: tuple.__new__(type, items), without the function of Python
// that its class puts in between.
class Named {
 public:
  explicit Named(Object* type)
      : type_(type), make_(reinterpret_cast<New>(api.PyType_GetSlot(api.PyTuple_Type, kNew))) {}
  template <class... Items>
  Object* operator()(Items... items) const {
    const Owned arguments(tuple(tuple(items...)));
    return checked(make_(type_, arguments.get(), nullptr));
  }

 private:
  using New = Object* (*)(Object* type, Object* arguments, Object* named);
  Object* type_;
  New make_;
};

bool truth(Object* object);
int64_t integer(Object* object, const char* name);
std::string type_of(Object* object);
std::string_view bytes_in(Object* object);

// A one-dimensional, contiguous array of int32 or int64: a torch tensor on the CPU, or anything
// with a buffer (numpy, array, memoryview). Borrowed for the lifetime of this object.
class Array {
 public:
  Array(Object* object, const char* name, bool writable = false);
  ~Array() {
    if (view_.owner) api.PyBuffer_Release(&view_);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void* data = nullptr;
  bool wide = false;
  size_t count = 0;

 private:
  void read_tensor(Object* object, const char* name);
  void read_buffer(Object* object, const char* name, bool writable);

  View view_ = {};
};

// A fresh one-dimensional torch tensor; release() hands it to Python.
class Fresh {
 public:
  Fresh(size_t count, bool wide);
  ~Fresh();
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(tensor_->dl_tensor.data);
  }
  Object* release();

 private:
  DLManagedTensorVersioned* tensor_;
};

// As the class of commlib.errors, or Python's own, that its kind names.
void raise(const Failure& failure);

// Runs the work of an entry point; what it throws becomes the Python error.
template <class Work>
Object* entered(Work&& work) {
  try {
    return work();
  } catch (const Failure& failure) {
    raise(failure);
  } catch (const Raised&) {
  } catch (const std::bad_alloc&) {
    api.PyErr_SetString(*api.PyExc_MemoryError, "commlib: out of memory");
  }
  return nullptr;
}

// Entry points refuse a wrong number of arguments, which is a mistake in our own Python half.
inline void takes(Size given, Size needed) {
  if (given != needed) fail("TypeError", "native call with ", given, " arguments, not ", needed);
}

}  // namespace commlib::binding::python
