// out_of_range_count for Python: reads a counter by the name of its kernel.
#include "binding/counters.h"

#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <string>

#include "binding/entry.h"

namespace commlib::binding {
namespace {

constexpr const char* kKernels[kCounters] = {"index", "store", "metadata"};

Counter counter_of(const std::string& kernel) {
  std::string known;
  for (int i = 0; i < kCounters; ++i) {
    if (kernel == kKernels[i]) return static_cast<Counter>(i);
    known += (i ? ", " : "") + std::string(kKernels[i]);
  }
  fail("ValueError", "kernel is '", kernel, "', but must be one of ", known);
}

// `device_type` is DLPack's.
int64_t out_of_range_count(tvm::ffi::String kernel, int device_type, int device_id, bool reset) {
  return guarded([&] {
    const Counter counter = counter_of(kernel);
    if (device_type == kDLCUDA) return read_counter(device_id, counter, reset);
    std::atomic<int64_t>& count = cpu_counter(counter);
    return reset ? count.exchange(0) : count.load();
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("commlib.kernels.out_of_range_count", out_of_range_count);
}

}  // namespace

std::atomic<int64_t>& cpu_counter(Counter counter) {
  static std::atomic<int64_t> counters[kCounters] = {};
  return counters[counter];
}

}  // namespace commlib::binding
