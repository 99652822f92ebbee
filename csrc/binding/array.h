// One-dimensional integers as Python has them: what the radix tree and prefix_match take and give.
#pragma once

#include <memory>
#include <vector>

#include "binding/tensor.h"

namespace commlib::binding {

// A one-dimensional, contiguous array of int32 or int64: a torch tensor on the CPU, or anything
// with a buffer (numpy, array, memoryview), borrowed for the lifetime of this object. To be read it
// may also be a list or tuple of int, or a tensor on a device: those are copied.
class Array {
 public:
  enum Access { kRead, kWrite };

  Array(python::Object* object, const python::Argument& argument, Access access = kRead);
  Array(const Tensor& tensor, const python::Argument& argument);  // on the CPU
  ~Array() {
    if (view_.owner) PyBuffer_Release(&view_);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void* data = nullptr;
  bool wide = false;
  size_t count = 0;

 private:
  void read_tensor(python::Object* object, const python::Argument& argument, Access access);
  void read_buffer(python::Object* object, const python::Argument& argument, Access access);

  Py_buffer view_ = {};
  std::unique_ptr<python::Owned> copy_;  // of a tensor on a device
  std::vector<int64_t> numbers_;         // of a list
};

// A fresh one-dimensional torch tensor of int32 or int64; release() hands it to Python.
class Fresh {
 public:
  Fresh(size_t count, bool wide);
  ~Fresh() {
    if (tensor_) tensor_->deleter(tensor_);
  }
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(tensor_->tensor.data);
  }
  python::Object* release();

 private:
  ManagedTensor* tensor_;
};

}  // namespace commlib::binding
