// What the kernels of commlib/kernels ask of their tensors: where the bytes lie, and that they are
// what the kernel needs. Every refusal names the tensor and the remedy.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <string>

#include "commlib/check.h"

namespace commlib::binding {

namespace ffi = tvm::ffi;
using ffi::TensorView;

inline int64_t element_bytes(const TensorView& tensor) {
  const DLDataType type = tensor.dtype();
  return static_cast<int64_t>(type.bits) * type.lanes / 8;
}

inline unsigned char* bytes_of(const TensorView& tensor) {
  return static_cast<unsigned char*>(tensor.data_ptr()) + tensor.byte_offset();
}

inline std::string shape_of(const TensorView& tensor) {
  std::string all;
  for (int64_t size : tensor.shape()) all += (all.empty() ? "" : ", ") + std::to_string(size);
  return all;
}

inline bool same_type(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

// int64, else int32; anything else is refused.
inline bool is_wide(const TensorView& tensor, const char* name) {
  const DLDataType type = tensor.dtype();
  if (type.code != kDLInt || type.lanes != 1 || (type.bits != 32 && type.bits != 64))
    fail("ValueError", name, " has another type than int32 or int64; pass ", name, ".long()");
  return type.bits == 64;
}

// Where a kernel runs: all its tensors lie there.
struct Place {
  DLDevice device;

  explicit Place(const TensorView& tensor) : device(tensor.device()) {
    if (device.device_type != kDLCPU && device.device_type != kDLCUDA)
      fail("Unsupported", "the tensors are on a device of DLPack type ",
           static_cast<int>(device.device_type), "; move them to the CPU or to a CUDA device");
  }
  bool is_cpu() const { return device.device_type == kDLCPU; }
  void holds(const TensorView& tensor, const char* name) const {
    const DLDevice other = tensor.device();
    if (other.device_type == device.device_type && other.device_id == device.device_id) return;
    fail("ValueError", "the tensors are on different devices: ", name, " is on ", words(other),
         ", another on ", words(device), "; move them to one");
  }

 private:
  static std::string words(DLDevice device) {
    return device.device_type == kDLCPU ? "cpu" : text("cuda:", device.device_id);
  }
};

// The first byte of a tensor and the byte after its last; strides are 0 or more.
struct Span {
  const unsigned char* begin;
  const unsigned char* end;

  explicit Span(const TensorView& tensor) : begin(bytes_of(tensor)), end(begin) {
    if (tensor.numel() == 0) return;
    int64_t last = 0;
    for (int d = 0; d < tensor.ndim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    end += (last + 1) * element_bytes(tensor);
  }
  Span(const unsigned char* begin, const unsigned char* end) : begin(begin), end(end) {}

  bool meets(const Span& other) const {
    return begin != end && other.begin != other.end && begin < other.end && other.begin < end;
  }
};

inline void apart(const Span& out, const char* out_name, const Span& in, const char* in_name) {
  if (!out.meets(in)) return;
  fail("ValueError", out_name, " overlaps ", in_name, ", which is read while ", out_name,
       " is written; pass another ", out_name);
}
inline void apart(const TensorView& out, const char* out_name, const TensorView& in,
                  const char* in_name) {
  apart(Span(out), out_name, Span(in), in_name);
}

}  // namespace commlib::binding
