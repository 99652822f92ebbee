// Kernels of csrc/kernels/*.cu on the GPUs of this process: compiled by Python and loaded where
// they are first used, launched on the caller's stream.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <atomic>
#include <string>

#include "cuda/module.h"

namespace commlib::binding {

constexpr int kMaxDevices = 64;

// What is left out because its number names no place, by kernel. A device counts up for ever; what
// the host has reset is subtracted.
enum Counter : int { kIndexCounter, kStoreCounter, kMetadataCounter, kCounters };

struct Gpu {
  CUcontext context = nullptr;
  unsigned multiprocessors = 0;
  std::string arch;              // "sm_90"
  uint64_t* counters = nullptr;  // kCounters of them, on the device
  uint64_t* answer = nullptr;    // a word on the device for a kernel that finds something out
};

// Throws Unsupported for a device that is not there.
const Gpu& gpu(int device);

inline unsigned long long* counter_on(int device, Counter counter) {
  return reinterpret_cast<unsigned long long*>(gpu(device).counters + counter);
}
// Waits for the calls made on the caller's stream so far.
int64_t read_counter(int device, Counter counter, bool reset);

// Torch's current stream on a device.
CUstream stream_on(DLDevice device);

// Words of 32 bits from torch's allocator: dropped when the launches that use them are on the
// stream, since whoever gets the memory next is behind them.
tvm::ffi::Tensor memory_on(DLDevice device, int64_t words);

// One kernel, on every GPU.
class DeviceCode {
 public:
  // `source` is a file below csrc, `expression` one kernel of it with its template arguments.
  DeviceCode(const char* source, std::string expression)
      : source_(source), expression_(std::move(expression)) {}
  DeviceCode(const DeviceCode&) = delete;
  DeviceCode& operator=(const DeviceCode&) = delete;

  // `job` is the kernel's one parameter.
  void launch(unsigned blocks, unsigned threads, DLDevice device, void* job) const;

 private:
  const Function& on(int device) const;
  const Function* build(int device) const;

  const char* source_;
  const std::string expression_;
  mutable std::atomic<const Function*> functions_[kMaxDevices] = {};
};

}  // namespace commlib::binding
