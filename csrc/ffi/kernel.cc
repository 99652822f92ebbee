#include "ffi/kernel.h"

namespace commlib::ffi {

Kernel::Kernel(void* function, binding::Device device, int rank,
               const std::vector<unsigned char*>& memories, size_t at, void* deadline)
    : function_(function), device_(device), size_(static_cast<int64_t>(memories.size())) {
  for (const size_t part : {at + kRoomAt, at}) {
    for (unsigned char* const memory : memories)
      addresses_.push_back(reinterpret_cast<int64_t>(memory + part));
  }
  unsigned char* const area = memories[static_cast<size_t>(rank)] + at;
  auto* const addresses = reinterpret_cast<int64_t*>(area + kAddressesAt);
  set(kPeers, addresses, size_);
  set(kSignalWords, addresses + size_, size_);
  values_[kRank] = integer(rank);
  values_[kSize] = integer(size_);
  set(kCallWords, area + kCallsAt, kCalls);
  set(kDeadline, deadline, sizeof(Deadline) / sizeof(int64_t));
}

void Kernel::set(int value, void* data, int64_t count, DType dtype) {
  using Code = binding::TypeCode;  // tvm-ffi has others by the same names
  constexpr uint8_t codes[kDTypes] = {
      Code::kFloat,       Code::kFloat,   Code::kFloat, Code::kBfloat, Code::kFloat8_e4m3fn,
      Code::kFloat8_e5m2, Code::kInt,     Code::kUInt,  Code::kInt,    Code::kUInt,
      Code::kInt,         Code::kUInt,    Code::kInt,   Code::kUInt,   Code::kBool,
      Code::kComplex,     Code::kComplex, Code::kUInt,  Code::kUInt,   Code::kUInt,
      Code::kUInt,        Code::kUInt};
  const binding::ElementType type = {codes[static_cast<int>(dtype)],
                                     static_cast<uint8_t>(size_of(dtype) * 8), 1};
  View& view = views_[value];
  view = {{data, device_, 1, type, &view.count, &view.step, 0}, count, 1};
  values_[value] = {kTensorView, 0, {}};
  values_[value].pointer = static_cast<binding::TensorFields*>(&view);
}

void Kernel::run(const Call& call) {
  const auto count = static_cast<int64_t>(call.count);
  const bool scatters = call.op == Op::reduce_scatter || call.op == Op::all_to_all;
  const bool gathers = call.op == Op::all_gather || call.op == Op::all_to_all;
  set(kIn, const_cast<unsigned char*>(call.in), scatters ? count * size_ : count, call.dtype);
  set(kOut, call.out, gathers ? count * size_ : count, call.dtype);
  ffi::call(function_, values_, kValues);
}

}  // namespace commlib::ffi
