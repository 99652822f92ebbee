#include "binding/python.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace commlib::binding::python {

Api api;

namespace {

template <class Pointer>
void find(Pointer* pointer, const char* name) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  if (!symbol) fail("Unsupported", "this process has no Python with ", name);
  std::memcpy(pointer, &symbol, sizeof(symbol));
}

constexpr const char* kAccepted =
    "a one-dimensional int32 or int64 torch tensor, numpy array, array or memoryview";

void one_dimension(const char* name, int ndim) {
  if (ndim != 1) {
    fail("ValueError", name, " has ", ndim,
         " dimensions, but must have 1: one sequence in a call; pass one row, or flatten it");
  }
}

void adjacent(const char* name, int64_t stride, size_t count) {
  if (count > 1 && stride != 1) {
    fail("ValueError", "the elements of ", name, " are ", stride,
         " apart, but must be 1; pass a contiguous copy");
  }
}

// Where the numbers of a fresh tensor begin: behind its own description.
struct Block {
  DLManagedTensorVersioned tensor;
  int64_t shape[1], strides[1];
};
constexpr size_t kDataOffset = (sizeof(Block) + 63) / 64 * 64;

void drop(DLManagedTensorVersioned* tensor) { std::free(tensor); }

}  // namespace

void connect(const DLPackExchangeAPI* torch, Object* tensor_class, Object* parameter_class) {
#define COMMLIB_FIND(name) find(&api.name, #name)
  COMMLIB_FIND(PyCFunction_NewEx);
  COMMLIB_FIND(PyCapsule_New);
  COMMLIB_FIND(PyCapsule_GetPointer);
  COMMLIB_FIND(PyObject_CheckBuffer);
  COMMLIB_FIND(PyObject_GetBuffer);
  COMMLIB_FIND(PyBuffer_Release);
  COMMLIB_FIND(PyObject_IsInstance);
  COMMLIB_FIND(PyObject_IsTrue);
  COMMLIB_FIND(PyObject_Type);
  COMMLIB_FIND(PyObject_GetAttrString);
  COMMLIB_FIND(PyUnicode_AsUTF8AndSize);
  COMMLIB_FIND(PyLong_FromLongLong);
  COMMLIB_FIND(PyLong_AsLongLong);
  COMMLIB_FIND(PyBytes_FromStringAndSize);
  COMMLIB_FIND(PyBytes_AsStringAndSize);
  COMMLIB_FIND(PyFloat_AsDouble);
  COMMLIB_FIND(PyImport_ImportModule);
  COMMLIB_FIND(PyTuple_New);
  COMMLIB_FIND(PyTuple_SetItem);
  COMMLIB_FIND(PyType_GetSlot);
  COMMLIB_FIND(PyDict_New);
  COMMLIB_FIND(PyDict_SetItemString);
  COMMLIB_FIND(PySequence_Size);
  COMMLIB_FIND(PySequence_GetItem);
  COMMLIB_FIND(PyErr_Occurred);
  COMMLIB_FIND(PyErr_Clear);
  COMMLIB_FIND(PyErr_SetString);
  COMMLIB_FIND(Py_IncRef);
  COMMLIB_FIND(Py_DecRef);
  COMMLIB_FIND(_Py_NoneStruct);
  COMMLIB_FIND(_Py_TrueStruct);
  COMMLIB_FIND(_Py_FalseStruct);
  COMMLIB_FIND(PyTuple_Type);
  COMMLIB_FIND(PyBool_Type);
  COMMLIB_FIND(PyLong_Type);
  COMMLIB_FIND(PyUnicode_Type);
  COMMLIB_FIND(PyFloat_Type);
  COMMLIB_FIND(PyExc_RuntimeError);
  COMMLIB_FIND(PyExc_MemoryError);
#undef COMMLIB_FIND
  if (torch->header.version.major != DLPACK_MAJOR_VERSION ||
      !torch->dltensor_from_py_object_no_sync)
    fail("Unsupported",
         "this torch hands tensors over in another way; commlib needs 2.11 or later");
  api.torch = torch;
  api.tensor_class = again(tensor_class);
  api.parameter_class = again(parameter_class);
}

void raise(const Failure& failure) {
  for (const char* module : {"commlib.errors", "builtins"}) {
    Object* const home = api.PyImport_ImportModule(module);
    Object* const kind = home ? api.PyObject_GetAttrString(home, failure.kind().c_str()) : nullptr;
    if (home) api.Py_DecRef(home);
    if (!kind) {
      api.PyErr_Clear();
      continue;
    }
    api.PyErr_SetString(kind, failure.what());
    api.Py_DecRef(kind);
    return;
  }
  api.PyErr_SetString(*api.PyExc_RuntimeError, text(failure.kind(), ": ", failure.what()).c_str());
}

bool truth(Object* object) {
  const int value = api.PyObject_IsTrue(object);
  if (value < 0) throw Raised();
  return value != 0;
}

std::string type_of(Object* object) {
  const Owned type(api.PyObject_Type(object));
  const Owned name(api.PyObject_GetAttrString(type.get(), "__name__"));
  Size size = 0;
  const char* text = api.PyUnicode_AsUTF8AndSize(name.get(), &size);
  return text ? std::string(text, static_cast<size_t>(size)) : "?";
}

int64_t integer(Object* object, const char* name) {
  const long long value = api.PyLong_AsLongLong(object);
  if (value != -1 || !api.PyErr_Occurred()) return value;
  api.PyErr_Clear();
  const std::string type = type_of(object);
  if (type == "int") fail("ValueError", name, " does not fit 64 bits; pass a smaller number");
  fail("TypeError", name, " is of type ", type, ", but must be an int");
}

std::string_view bytes_in(Object* object) {
  char* data = nullptr;
  Size size = 0;
  if (api.PyBytes_AsStringAndSize(object, &data, &size) != 0) throw Raised();
  return {data, static_cast<size_t>(size)};
}

Array::Array(Object* object, const char* name, bool writable) {
  if (api.PyObject_CheckBuffer(object)) {
    read_buffer(object, name, writable);
    return;
  }
  const int tensor = api.PyObject_IsInstance(object, api.tensor_class);
  if (tensor < 0) throw Raised();
  if (!tensor)
    fail("TypeError", name, " is of type ", type_of(object), ", but must be ", kAccepted);
  read_tensor(object, name);
}

void Array::read_tensor(Object* object, const char* name) {
  DLTensor tensor;
  if (api.torch->dltensor_from_py_object_no_sync(object, &tensor) != 0) {
    api.PyErr_Clear();
    fail("ValueError", name, " is a tensor without plain memory, but must be ", kAccepted);
  }
  if (tensor.device.device_type != kDLCPU && tensor.device.device_type != kDLCUDAHost) {
    fail("ValueError", name, " is on a device (type ", int(tensor.device.device_type),
         "), but the tree is in the CPU's memory; pass ", name, ".cpu()");
  }
  if (tensor.dtype.code != kDLInt || tensor.dtype.lanes != 1 ||
      (tensor.dtype.bits != 32 && tensor.dtype.bits != 64)) {
    fail("ValueError", name, " has another type than int32 or int64; pass ", name, ".long()");
  }
  one_dimension(name, tensor.ndim);
  count = static_cast<size_t>(tensor.shape[0]);
  wide = tensor.dtype.bits == 64;
  if (tensor.strides) adjacent(name, tensor.strides[0], count);
  data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  if (!tensor.data && count > 0)
    fail("ValueError", name, " is a tensor without memory (fake or meta); pass a real one");
}

void Array::read_buffer(Object* object, const char* name, bool writable) {
  const int flags = kViewStrides | kViewFormat | (writable ? kViewWritable : 0);
  if (api.PyObject_GetBuffer(object, &view_, flags) != 0) {
    api.PyErr_Clear();
    view_.owner = nullptr;
    fail("ValueError", name, " does not give its memory", writable ? " for writing" : "", "; pass ",
         kAccepted);
  }
  try {
    const char* format = view_.format ? view_.format : "B";
    if (*format == '@' || *format == '=') ++format;
    if (std::strlen(format) != 1 || !std::strchr("ilq", *format)) {
      fail("ValueError", name, " holds elements of format '", format,
           "', but must be int32 or int64; convert it");
    }
    one_dimension(name, view_.ndim);
    wide = view_.item_bytes == 8;
    count = static_cast<size_t>(view_.shape[0]);
    adjacent(name, view_.strides[0] / view_.item_bytes, count);
    data = view_.data;
  } catch (...) {
    api.PyBuffer_Release(&view_);
    throw;
  }
}

Fresh::Fresh(size_t count, bool wide) {
  const size_t bytes = kDataOffset + count * (wide ? 8 : 4);
  auto* block = static_cast<Block*>(std::malloc(bytes));
  if (!block) throw std::bad_alloc();
  std::memset(static_cast<void*>(block), 0, sizeof(Block));
  tensor_ = &block->tensor;
  tensor_->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  tensor_->deleter = drop;
  DLTensor& tensor = tensor_->dl_tensor;
  tensor.data = reinterpret_cast<char*>(block) + kDataOffset;
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLInt, static_cast<uint8_t>(wide ? 64 : 32), 1};
  block->shape[0] = static_cast<int64_t>(count);
  block->strides[0] = 1;
  tensor.shape = block->shape;
  tensor.strides = block->strides;
}

Fresh::~Fresh() {
  if (tensor_) drop(tensor_);
}

Object* Fresh::release() {
  void* made = nullptr;
  if (api.torch->managed_tensor_to_py_object_no_sync(tensor_, &made) != 0) throw Raised();
  tensor_ = nullptr;
  return static_cast<Object*>(made);
}

}  // namespace commlib::binding::python
