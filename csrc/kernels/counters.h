// What calls of a kernel left out because its number names no place: a counter for each device.
#pragma once

#include <atomic>
#include <cstdint>

#include "binding/dlpack.h"

namespace commlib::kernels {

// One for each kernel, for the life of the process: `Counter counter("index");` in its check.cc.
class Counter {
 public:
  static constexpr int kMax = 16;  // kernels that count

  explicit Counter(const char* kernel);
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  const char* kernel() const { return kernel_; }
  // Of calls on the CPU.
  std::atomic<int64_t>& on_cpu() { return cpu_; }
  // Of calls on a GPU: a word in its memory.
  unsigned long long* on_gpu(int device) const;
  // On a GPU it waits for the calls made on the caller's stream so far.
  int64_t read(binding::Device device, bool reset);

 private:
  int64_t read_gpu(int device, bool reset);

  const char* kernel_;
  int index_;
  std::atomic<int64_t> cpu_{0};
};

}  // namespace commlib::kernels
