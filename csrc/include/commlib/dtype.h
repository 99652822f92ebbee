// Element types and reductions, with the codes Python uses for them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commlib {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8e4m3,
  f8e5m2,
  i8,
  u8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  boolean,
  c64,
  c128,
  // Any other element type: it can be moved, not reduced. Its size is in the name.
  bytes1,
  bytes2,
  bytes4,
  bytes8,
  bytes16,
  count
};

// Order as commlib/redops.py: REDOPS.
enum class RedOp : uint8_t { sum, prod, min, max, avg, band, bor, bxor, count };

constexpr int kDTypes = static_cast<int>(DType::count);
constexpr int kRedOps = static_cast<int>(RedOp::count);

inline size_t size_of(DType dtype) {
  constexpr uint8_t sizes[kDTypes] = {8, 4, 2, 2, 1, 1,  1, 1, 2, 2, 4,
                                      4, 8, 8, 1, 8, 16, 1, 2, 4, 8, 16};
  return sizes[static_cast<int>(dtype)];
}

inline const char* name_of(DType dtype) {
  constexpr const char* names[kDTypes] = {"float64",
                                          "float32",
                                          "float16",
                                          "bfloat16",
                                          "float8_e4m3fn",
                                          "float8_e5m2",
                                          "int8",
                                          "uint8",
                                          "int16",
                                          "uint16",
                                          "int32",
                                          "uint32",
                                          "int64",
                                          "uint64",
                                          "bool",
                                          "complex64",
                                          "complex128",
                                          "1-byte elements",
                                          "2-byte elements",
                                          "4-byte elements",
                                          "8-byte elements",
                                          "16-byte elements"};
  return names[static_cast<int>(dtype)];
}

inline const char* name_of(RedOp op) {
  constexpr const char* names[kRedOps] = {"sum", "prod", "min", "max",
                                          "avg", "band", "bor", "bxor"};
  return names[static_cast<int>(op)];
}

}  // namespace commlib
