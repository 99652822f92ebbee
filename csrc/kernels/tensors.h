// What the kernels ask of their tensors: where they lie, and that they are what the kernel needs.
// Every refusal names the tensor and the remedy.
#pragma once

#include <cstdint>
#include <string>

#include "binding/method.h"
#include "commlib/check.h"
#include "commlib/types.h"

namespace commlib::kernels {

using binding::Device;
using binding::ElementType;
using binding::Tensor;

inline std::string shape_of(const Tensor& tensor) {
  std::string all;
  for (int d = 0; d < tensor.ndim(); ++d)
    all += (all.empty() ? "" : ", ") + std::to_string(tensor.size(d));
  return all;
}

// int64, else int32; anything else is refused.
inline bool is_wide(const Tensor& tensor, const char* name) {
  const ElementType type = tensor.type();
  if (type.code != binding::kInt || type.lanes != 1 || (type.bits != 32 && type.bits != 64))
    fail("ValueError", name, " is neither int32 nor int64; pass ", name, ".long()");
  return type.bits == 64;
}

// Where a kernel runs: all its tensors lie there.
struct OneDevice {
  Device device;

  explicit OneDevice(const Tensor& tensor) : device(tensor.device()) {
    if (device.type != binding::kCpu && device.type != binding::kCuda)
      fail("Unsupported", "the tensors are on a device of DLPack type ", int{device.type},
           "; move them to the CPU or to a CUDA device");
  }
  bool is_cpu() const { return device.type == binding::kCpu; }
  void holds(const Tensor& tensor, const char* name) const {
    const Device other = tensor.device();
    if (other.type == device.type && other.index == device.index) return;
    fail("ValueError", "the tensors are on different devices: ", name, " is on ", words(other),
         ", another on ", words(device), "; move them to one");
  }

 private:
  static std::string words(Device device) {
    return device.type == binding::kCpu ? "cpu" : text("cuda:", device.index);
  }
};

// The first byte of a tensor and the byte after its last; strides are 0 or more.
struct Span {
  const unsigned char* begin;
  const unsigned char* end;

  explicit Span(const Tensor& tensor)
      : begin(tensor.data()), end(tensor.numel() > 0 ? begin + tensor.span_bytes() : begin) {}
  Span(const unsigned char* begin, const unsigned char* end) : begin(begin), end(end) {}

  bool meets(const Span& other) const {
    return begin != end && other.begin != other.end && begin < other.end && other.begin < end;
  }
};

inline void apart(const Tensor& out, const char* out_name, const Tensor& in, const char* in_name) {
  if (!Span(out).meets(Span(in))) return;
  fail("ValueError", out_name, " overlaps ", in_name, ", which is read while ", out_name,
       " is written; pass another ", out_name);
}

}  // namespace commlib::kernels
