// The part of tvm-ffi's C ABI (0.1) that commlib uses, declared here: the build needs nothing of
// tvm-ffi's, and its functions are looked for where the host has loaded them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commlib::ffi {

enum Type : int32_t {
  kNone = 0,
  kInt = 1,
  kBool = 2,
  kFloat = 3,
  kTensorView = 7,  // DLTensor*
  kCString = 8,
  kShortString = 11,
  kString = 65,
  kTensor = 70,
  kArray = 71,
  kList = 75,
};

struct Any {  // TVMFFIAny
  int32_t type;
  uint32_t short_length;
  union {
    int64_t integer;
    double number;
    const void* pointer;
    const char* c_string;
    char short_string[8];
  };
};
struct Bytes {  // TVMFFIByteArray: of a string
  const char* data;
  size_t size;
};
struct Items {  // TVMFFISeqCell: of an array or a list
  const Any* data;
  int64_t size;
};
// What an object has behind its header.
template <class T>
const T& content(const void* object) {
  constexpr size_t kHeaderBytes = 24;  // TVMFFIObject
  return *reinterpret_cast<const T*>(static_cast<const char*>(object) + kHeaderBytes);
}

inline Any integer(int64_t value) {
  Any made{kInt, 0, {}};
  made.integer = value;
  return made;
}

// Throw Unsupported where no tvm-ffi is loaded.
void* stream_of(int32_t device_type, int32_t device);
void* exchange_stream(int32_t device_type, int32_t device, void* stream);
void set_error(const char* kind, const char* message);
// Calls a function that returns nothing. Throws what it raised, as a Failure of that kind.
void call(void* function, const Any* values, int32_t count);

}  // namespace commlib::ffi
