// Tensors in a rank's arena, for tvm-ffi's allocation: each keeps what the rank holds alive.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <memory>

#include "binding/entry.h"
#include "commlib/check.h"

namespace commlib::binding {

// One-dimensional bytes in the arena of `target`'s group.
template <class T>
tvm::ffi::Tensor arena_tensor(const std::shared_ptr<T>& target, int64_t bytes, DLDevice device) {
  struct Memory {
    std::shared_ptr<T> target;
    void AllocData(DLTensor* tensor) {
      guarded([&] {
        target->open();
        tensor->data = target->group->arena().allocate(static_cast<size_t>(tensor->shape[0]));
      });
    }
    void FreeData(DLTensor* tensor) {
      if (tensor->data) target->group->arena().free(tensor->data);
    }
  };
  guarded([&] {
    if (bytes < 0) fail("ValueError", "empty() of ", bytes, " bytes; shapes are 0 or more");
  });
  return tvm::ffi::Tensor::FromNDAlloc(Memory{target}, tvm::ffi::Shape({bytes}),
                                       DLDataType{kDLUInt, 8, 1}, device);
}

}  // namespace commlib::binding
