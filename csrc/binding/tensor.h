// A torch tensor as native code sees it: taken from Python without a Python call, dense, of plain
// bytes, and all of it in memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "binding/dlpack.h"
#include "binding/python.h"

namespace commlib::binding {

// Torch's classes and functions; set once, when Python loads the library.
struct Torch {
  const TensorExchange* exchange = nullptr;
  python::Object* tensor = nullptr;     // torch.Tensor
  python::Object* parameter = nullptr;  // its one subclass that is no more than it
  Torch() = default;
  Torch(python::Object* tensor, python::Object* parameter);

  // How many bytes the storage of a tensor has from the tensor's first element on.
  int64_t bytes_from(python::Object* tensor, int64_t item_bytes) const;
  // As torch's own calls in place do: autograd then refuses what it has saved of the tensor. One of
  // inference mode has no version.
  void raise_version(python::Object* tensor) const;

 private:
  using Ask = int (*)(const void* tensor, int64_t* answer);
  // Where a torch.Tensor keeps torch's own handle, and torch's C functions that take it; 0 and null
  // where this torch has them elsewhere: then its Python is asked, which costs a third of a µs.
  ptrdiff_t handle_ = 0;
  Ask storage_bytes_ = nullptr, storage_offset_ = nullptr;
  // C++ functions of torch's, by the names that compilers give them.
  bool (*is_inference_)(const void* tensor) = nullptr;
  void (*bump_version_)(const void* tensor) = nullptr;
};
extern Torch torch;

inline bool same_type(ElementType a, ElementType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
// "float32", as torch calls it.
std::string name_of(ElementType type);

// Borrowed: Python holds the tensor while the call lasts.
class Tensor {
 public:
  Tensor(python::Object* object, const python::Argument& argument) : object_(object) {
    const bool plain = object->type == torch.tensor || object->type == torch.parameter;
    if (!plain && !python::is_instance(object, torch.tensor)) refuse_object(argument);
    if (torch.exchange->borrow(object, &fields_) != 0) refuse_layout(argument);
    if (may_be_lazy() && is_lazy()) refuse_lazy(argument.name());
    if (numel() > 0 && !has_memory()) refuse_memory(argument.name());
  }
  // One that came through DLPack, from a framework of which nothing is known.
  Tensor(const TensorFields& fields, const python::Argument& argument)
      : object_(nullptr), fields_(fields) {
    if (numel() > 0 && (!fields.data || !fields.strides))
      fail("ValueError", argument.name(), " has no memory, or no strides");
  }

  python::Object* object() const { return object_; }  // null: not of Python
  int ndim() const { return fields_.ndim; }
  const int64_t* shape() const { return fields_.shape; }
  const int64_t* strides() const { return fields_.strides; }
  // Negative dimensions count from the last.
  int64_t size(int d) const { return fields_.shape[d < 0 ? d + fields_.ndim : d]; }
  int64_t stride(int d) const { return fields_.strides[d < 0 ? d + fields_.ndim : d]; }
  ElementType type() const { return fields_.type; }
  Device device() const { return fields_.device; }
  int64_t item_bytes() const { return int64_t{fields_.type.bits} * fields_.type.lanes / 8; }
  unsigned char* data() const {
    return static_cast<unsigned char*>(fields_.data) + fields_.byte_offset;
  }
  int64_t numel() const {
    int64_t count = 1;
    for (int d = 0; d < fields_.ndim; ++d) count *= fields_.shape[d];
    return count;
  }
  bool is_contiguous() const {
    int64_t expected = 1;
    for (int d = fields_.ndim - 1; d >= 0; --d) {
      if (fields_.shape[d] == 0) return true;
      if (fields_.shape[d] != 1 && fields_.strides[d] != expected) return false;
      expected *= fields_.shape[d];
    }
    return true;
  }
  // From the first element to behind the last, in bytes, of a tensor that has elements.
  int64_t span_bytes() const {
    int64_t last = 0;
    for (int d = 0; d < fields_.ndim; ++d) last += (fields_.shape[d] - 1) * fields_.strides[d];
    return (last + 1) * item_bytes();
  }

 private:
  // Torch notes on a tensor that it stands for its conjugate or its negative: the bytes do not show
  // it. Imaginary parts of a conjugate are negatives; they lie at odd multiples of their size.
  bool may_be_lazy() const {
    if (fields_.type.code == kComplex) return true;
    const auto bytes = static_cast<uint64_t>(item_bytes());
    return fields_.type.code == kFloat && (reinterpret_cast<uint64_t>(data()) & bytes) != 0;
  }
  bool is_lazy() const;
  // Its storage may have been resized since.
  bool has_memory() const {
    return fields_.data && torch.bytes_from(object_, item_bytes()) >= span_bytes();
  }
  [[noreturn]] void refuse_object(const python::Argument& argument) const;
  [[noreturn]] void refuse_layout(const python::Argument& argument) const;
  [[noreturn]] void refuse_lazy(const std::string& name) const;
  [[noreturn]] void refuse_memory(const std::string& name) const;

  python::Object* object_;
  TensorFields fields_;
};

// A new torch tensor of one dimension over memory that `release` gives back.
python::Object* tensor_over(void* data, int64_t count, ElementType type, Device device,
                            std::function<void()> release);

// Torch's current stream on a device; while a call of tvm-ffi's is under way on this thread, that
// of its environment.
void* current_stream(Device device);
extern thread_local bool on_stream_of_ffi
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

// Words of 32 bits from torch's allocator: dropped when the launches that use them are on the
// stream, since the next user of the memory is behind them.
struct DropTensor {
  void operator()(ManagedTensor* tensor) const { tensor->deleter(tensor); }
};
using Words = std::unique_ptr<ManagedTensor, DropTensor>;
Words words_on(Device device, int64_t count);

}  // namespace commlib::binding
