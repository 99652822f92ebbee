// Kernels of csrc/kernels/*/gpu.cu on the GPUs of this process: compiled by Python and loaded where
// they are first used, launched on the caller's stream.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "binding/dlpack.h"
#include "cuda/module.h"

namespace commlib::kernels {

constexpr int kMaxDevices = 64;

struct Gpu {
  CUcontext context = nullptr;
  unsigned multiprocessors = 0;
  std::string arch;              // "sm_90"
  uint64_t* counters = nullptr;  // Counter::kMax of them, on the device
  uint64_t* answer = nullptr;    // a word on the device for a kernel that finds something out
};

// Throws Unsupported for a device that is not there.
const Gpu& gpu(int device);

// Torch's current stream on a device.
CUstream stream_on(binding::Device device);

// One kernel, on every GPU.
class DeviceCode {
 public:
  // `source` is a file below csrc, `expression` one kernel of it with its template arguments.
  DeviceCode(const char* source, std::string expression)
      : source_(source), expression_(std::move(expression)) {}
  DeviceCode(const DeviceCode&) = delete;
  DeviceCode& operator=(const DeviceCode&) = delete;

  const char* source() const { return source_; }
  const std::string& expression() const { return expression_; }
  // `job` is the kernel's one parameter.
  void launch(unsigned blocks, unsigned threads, binding::Device device, void* job) const;

 private:
  const Function& on(int device) const;
  const Function* build(int device) const;

  const char* source_;
  const std::string expression_;
  mutable std::atomic<const Function*> functions_[kMaxDevices] = {};
};

// Shows every kernel that calls can need, so that they can be compiled ahead and tested; one in
// each launch.cc: `const DeviceCodes codes([](const auto& show) { show(code()); });`
struct DeviceCodes {
  using Show = std::function<void(const DeviceCode&)>;
  explicit DeviceCodes(void (*each)(const Show& show));
};

}  // namespace commlib::kernels
