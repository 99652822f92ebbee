#include "kernels/counters.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "binding/method.h"
#include "kernels/device_code.h"

namespace commlib::kernels {
namespace {

std::vector<Counter*>& counters() {
  static std::vector<Counter*> all;
  return all;
}

// A GPU counts up for ever; what the host has reset is subtracted.
uint64_t resets[kMaxDevices][Counter::kMax] = {};
std::mutex resetting;

Counter& counter_of(const std::string& kernel) {
  std::vector<std::string> known;
  for (Counter* counter : counters()) {
    if (kernel == counter->kernel()) return *counter;
    known.push_back(counter->kernel());
  }
  std::sort(known.begin(), known.end());
  std::string words;
  for (const std::string& name : known) words += (words.empty() ? "" : ", ") + name;
  fail("ValueError", "kernel is '", kernel, "', but must be one of ", words);
}

// `device_type` is DLPack's.
int64_t out_of_range_count(const std::string& kernel, int64_t device_type, int64_t device_index,
                           bool reset) {
  return counter_of(kernel).read(
      {static_cast<binding::DeviceType>(device_type), static_cast<int>(device_index)}, reset);
}

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("out_of_range_count", out_of_range_count,
                             "kernel, device_type, device_index, reset")});
}

}  // namespace

Counter::Counter(const char* kernel)
    : kernel_(kernel), index_(static_cast<int>(counters().size())) {
  counters().push_back(this);
}

unsigned long long* Counter::on_gpu(int device) const {
  return reinterpret_cast<unsigned long long*>(gpu(device).counters + index_);
}

int64_t Counter::read(binding::Device device, bool reset) {
  if (device.type == binding::kCuda) return read_gpu(device.index, reset);
  return reset ? cpu_.exchange(0) : cpu_.load();
}

int64_t Counter::read_gpu(int device, bool reset) {
  const Gpu& here = gpu(device);
  const ContextGuard guard(here.context);
  const CUstream stream = stream_on({binding::kCuda, device});
  uint64_t count = 0;
  check(cuda().cuMemcpyDtoHAsync(&count, device_pointer(here.counters + index_), sizeof count,
                                 stream),
        "cuMemcpyDtoHAsync");
  check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
  const std::lock_guard<std::mutex> lock(resetting);
  const auto since = static_cast<int64_t>(count - resets[device][index_]);
  if (reset) resets[device][index_] = count;
  return since;
}

}  // namespace commlib::kernels
