// The part of DLPack 1.x that torch and commlib share: what a tensor is, and torch's functions that
// take one from a Python object and make one. The layout is DLPack's.
#pragma once

#include <cstdint>

namespace commlib::binding {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };
enum TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8_e4m3fn = 10,
  kFloat8_e5m2 = 12
};

struct Device {
  DeviceType type;
  int32_t index;
};

struct ElementType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct TensorFields {  // DLTensor
  void* data;
  Device device;
  int32_t ndim;
  ElementType type;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct DlpackVersion {
  uint32_t major, minor;
};
constexpr DlpackVersion kDlpack = {1, 3};

struct ManagedTensor {  // DLManagedTensorVersioned
  DlpackVersion version;
  void* context;
  void (*deleter)(ManagedTensor*);
  uint64_t flags;
  TensorFields tensor;
};

// What torch.Tensor.__dlpack_c_exchange_api__ points to; each returns 0, or sets a Python error.
struct TensorExchange {
  DlpackVersion version;
  TensorExchange* older;
  int (*allocate)(TensorFields* like, ManagedTensor** made, void* context,
                  void (*refuse)(void* context, const char* kind, const char* message));
  int (*managed_from)(void* object, ManagedTensor** out);
  int (*object_of)(ManagedTensor* tensor, void** object);
  int (*borrow)(void* object, TensorFields* out);
  int (*current_stream)(DeviceType device, int32_t index, void** stream);
};

}  // namespace commlib::binding
