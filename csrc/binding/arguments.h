// Checks of a call's tensors, as declarations at the top of each entry point.
#pragma once

#include <string_view>

#include "binding/target.h"
#include "commlib/check.h"
#include "commlib/dtype.h"

namespace commlib::binding {

inline DType dtype_of(ElementType type, const char* name) {
  const int bits = type.bits * type.lanes;
  switch (type.code) {
    case kFloat:
      if (bits == 64) return DType::f64;
      if (bits == 32) return DType::f32;
      if (bits == 16) return DType::f16;
      break;
    case kBfloat:
      return DType::bf16;
    case kFloat8_e4m3fn:
      return DType::f8e4m3;
    case kFloat8_e5m2:
      return DType::f8e5m2;
    case kBool:
      return DType::boolean;
    case kInt:
      if (bits == 8) return DType::i8;
      if (bits == 16) return DType::i16;
      if (bits == 32) return DType::i32;
      if (bits == 64) return DType::i64;
      break;
    case kUInt:
      if (bits == 8) return DType::u8;
      if (bits == 16) return DType::u16;
      if (bits == 32) return DType::u32;
      if (bits == 64) return DType::u64;
      break;
    case kComplex:
      if (bits == 64) return DType::c64;
      if (bits == 128) return DType::c128;
      break;
    default:
      break;
  }
  switch (bits) {
    case 8:
      return DType::bytes1;
    case 16:
      return DType::bytes2;
    case 32:
      return DType::bytes4;
    case 64:
      return DType::bytes8;
    case 128:
      return DType::bytes16;
    default:
      fail("ValueError", name, " has elements of ", bits, " bits; commlib moves whole bytes");
  }
}

// A tensor that passed: contiguous, where the backend's tensors are.
struct Buffer {
  unsigned char* data;
  size_t count;
  DType dtype;

  Buffer(const Target& target, const Tensor& tensor, const char* name)
      : data(tensor.data()),
        count(static_cast<size_t>(tensor.numel())),
        dtype(dtype_of(tensor.type(), name)) {
    const Device device = tensor.device();
    if (!target.owns(device)) target.refuse(device, name);
    if (!tensor.is_contiguous()) {
      const bool x = std::string_view(name) == "x";  // many calls change it: a temporary loses that
      fail("ValueError", name, " is not contiguous, but must be; ",
           x ? "first x = x.contiguous()" : "pass a contiguous tensor and copy from it");
    }
  }
  size_t bytes() const { return count * size_of(dtype); }
};

inline void same_dtype(const Buffer& x, const Buffer& out) {
  if (x.dtype != out.dtype)
    fail("ValueError", "out is ", name_of(out.dtype), ", but x is ", name_of(x.dtype));
}

inline void expect_count(const Buffer& buffer, const char* name, size_t count,
                         const char* because) {
  if (buffer.count != count) {
    fail("ValueError", name, " has ", counted(buffer.count, "element"), ", but needs ", count, ": ",
         because);
  }
}

// In place means the same address; any other overlap would read what was already overwritten.
inline void same_or_apart(const Buffer& x, const Buffer& out, size_t in_place_offset = 0) {
  const bool apart = x.data + x.bytes() <= out.data || out.data + out.bytes() <= x.data;
  if (apart || x.data == out.data + in_place_offset || x.bytes() == 0) return;
  fail("ValueError",
       "x and out overlap in part; pass the same memory for in place, or separate tensors");
}

inline void rank_in_world(int64_t rank, const char* name, int world) {
  if (rank < 0 || rank >= world)
    fail("ValueError", name, "=", rank, " is not a rank of this communicator: 0 to ", world - 1);
}

}  // namespace commlib::binding
