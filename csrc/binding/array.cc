#include "binding/array.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "binding/method.h"

namespace commlib::binding {

using python::Argument;
using python::Object;

namespace {

constexpr const char* kAccepted =
    "a list of int, or a one-dimensional int32 or int64 torch tensor, numpy array or memoryview";
constexpr int kViewWritable = 0x1, kViewFormat = 0x4, kViewStrides = 0x18;

void one_dimension(const Argument& argument, int ndim) {
  if (ndim != 1) {
    fail("ValueError", argument.name(), " has ", ndim,
         " dimensions, but must have 1: one sequence in a call; pass one row, or flatten it");
  }
}

void adjacent(const Argument& argument, int64_t step_bytes, int64_t item_bytes, size_t count) {
  if (count <= 1 || step_bytes == item_bytes) return;
  if (step_bytes % item_bytes == 0) {
    fail("ValueError", "the elements of ", argument.name(), " are ", step_bytes / item_bytes,
         " apart, but must be 1; pass a contiguous copy");
  }
  fail("ValueError", "the elements of ", argument.name(), " are ", step_bytes,
       " bytes apart, but must be ", item_bytes, "; pass a contiguous copy");
}

// Where the numbers of a fresh tensor begin: behind its own description.
struct Block {
  ManagedTensor tensor;
  int64_t shape, stride;
};
constexpr size_t kDataOffset = (sizeof(Block) + 63) / 64 * 64;

}  // namespace

Array::Array(Object* object, const Argument& argument, Access access) {
  if (PyObject_CheckBuffer(object)) {
    read_buffer(object, argument, access);
  } else if (python::is_instance(object, torch.tensor)) {
    read_tensor(object, argument, access);
  } else if (access == kRead && (python::is_instance(object, &PyList_Type) ||
                                 python::is_instance(object, &PyTuple_Type))) {
    numbers_ = From<std::vector<int64_t>>::take(object, argument);
    data = numbers_.data();
    wide = true;
    count = numbers_.size();
  } else {
    fail("TypeError", argument.name(), " is of type ", python::type_of(object), ", but must be ",
         kAccepted);
  }
}

void Array::read_tensor(Object* object, const Argument& argument, Access access) {
  const Tensor tensor(object, argument);
  const Device device = tensor.device();
  if (device.type != kCpu && device.type != kCudaHost) {
    if (access == kWrite || copy_) {
      fail("ValueError", argument.name(), " is on a device (type ", int{device.type},
           "), but must be in the CPU's memory; pass a tensor on the CPU");
    }
    copy_ = std::make_unique<python::Owned>(PyObject_CallMethod(object, "cpu", nullptr));
    return read_tensor(copy_->get(), argument, access);
  }
  wide = same_type(tensor.type(), {kInt, 64, 1});
  if (!wide && !same_type(tensor.type(), {kInt, 32, 1}))
    fail("ValueError", argument.name(), " is neither int32 nor int64; pass ", argument.name(),
         ".long()");
  one_dimension(argument, tensor.ndim());
  count = static_cast<size_t>(tensor.size(0));
  adjacent(argument, tensor.stride(0) * tensor.item_bytes(), tensor.item_bytes(), count);
  data = tensor.data();
}

void Array::read_buffer(Object* object, const Argument& argument, Access access) {
  const int flags = kViewStrides | kViewFormat | (access == kWrite ? kViewWritable : 0);
  if (PyObject_GetBuffer(object, &view_, flags) != 0) {
    PyErr_Clear();
    view_.owner = nullptr;
    fail("ValueError", argument.name(), " does not give access to its memory",
         access == kWrite ? " for writing" : "", "; pass ", kAccepted);
  }
  try {
    const char* format = view_.format ? view_.format : "B";
    if (*format == '@' || *format == '=') ++format;
    if (std::strlen(format) != 1 || !std::strchr("ilq", *format)) {
      fail("ValueError", argument.name(), " holds elements of format '", format,
           "', but must be int32 or int64; convert it");
    }
    one_dimension(argument, view_.ndim);
    wide = view_.item_bytes == 8;
    count = static_cast<size_t>(view_.shape[0]);
    adjacent(argument, view_.strides[0], view_.item_bytes, count);
    data = view_.data;
  } catch (...) {
    PyBuffer_Release(&view_);
    throw;
  }
}

Fresh::Fresh(size_t count, bool wide) {
  const size_t bytes = kDataOffset + count * (wide ? 8 : 4);
  auto* block = static_cast<Block*>(std::malloc(bytes));
  if (!block) throw std::bad_alloc();
  *block = {{}, static_cast<int64_t>(count), 1};
  tensor_ = &block->tensor;
  tensor_->version = kDlpack;
  tensor_->deleter = [](ManagedTensor* tensor) { std::free(tensor); };
  tensor_->tensor = {reinterpret_cast<char*>(block) + kDataOffset,
                     {kCpu, 0},
                     1,
                     {kInt, static_cast<uint8_t>(wide ? 64 : 32), 1},
                     &block->shape,
                     &block->stride,
                     0};
}

Object* Fresh::release() {
  void* made = nullptr;
  if (torch.exchange->object_of(tensor_, &made) != 0) throw python::Raised();
  tensor_ = nullptr;
  return static_cast<Object*>(made);
}

}  // namespace commlib::binding
