#include "kernels/device_code.h"

#include <mutex>
#include <vector>

#include "binding/method.h"
#include "kernels/counters.h"

namespace commlib::kernels {

namespace python = binding::python;

namespace {

// build(source, expression, arch) returns (cubin, symbol); commlib/kernels/__init__.py gives it.
python::Callback builder;

std::vector<void (*)(const DeviceCodes::Show&)>& listings() {
  static std::vector<void (*)(const DeviceCodes::Show&)> all;
  return all;
}

std::mutex& building() {
  static auto* const instance = new std::mutex;
  return *instance;
}

uint64_t* zeroed_words(size_t count) {
  const Relaxed relaxed;  // also in the middle of a capture
  CUdeviceptr words = 0;
  CUstream own = nullptr;
  check(cuda().cuMemAlloc(&words, count * sizeof(uint64_t)), "cuMemAlloc");
  check(cuda().cuStreamCreate(&own, kStreamNonBlocking), "cuStreamCreate");
  check(cuda().cuMemsetD8Async(words, 0, count * sizeof(uint64_t), own), "cuMemsetD8Async");
  check(cuda().cuStreamSynchronize(own), "cuStreamSynchronize");
  check(cuda().cuStreamDestroy(own), "cuStreamDestroy");
  return reinterpret_cast<uint64_t*>(words);
}

int attribute(CUdeviceAttribute name, CUdevice device) {
  int value = 0;
  check(cuda().cuDeviceGetAttribute(&value, name, device), "cuDeviceGetAttribute");
  return value;
}

Gpu find_gpu(int ordinal) {
  Gpu gpu;
  CUdevice device = 0;
  check(cuda().cuDeviceGet(&device, ordinal), "cuDeviceGet");
  check(cuda().cuDevicePrimaryCtxRetain(&gpu.context, device), "cuDevicePrimaryCtxRetain");
  gpu.multiprocessors = static_cast<unsigned>(attribute(kMultiprocessorCount, device));
  gpu.arch = text("sm_", attribute(kComputeCapabilityMajor, device),
                  attribute(kComputeCapabilityMinor, device));
  const ContextGuard guard(gpu.context);
  gpu.counters = zeroed_words(Counter::kMax + 1);
  gpu.answer = gpu.counters + Counter::kMax;
  return gpu;
}

}  // namespace

const Gpu& gpu(int device) {
  static std::atomic<const Gpu*> known[kMaxDevices] = {};
  if (device < 0 || device >= kMaxDevices)
    fail("Unsupported", "device cuda:", device, ": kernels serve the first ", kMaxDevices, " GPUs");
  if (const Gpu* gpu = known[device].load(std::memory_order_acquire)) return *gpu;
  const std::lock_guard<std::mutex> lock(building());
  if (!known[device].load()) known[device].store(new Gpu(find_gpu(device)));
  return *known[device].load();
}

CUstream stream_on(binding::Device device) {
  return static_cast<CUstream>(binding::current_stream(device));
}

const Function* DeviceCode::build(int device) const {
  const Gpu& here = gpu(device);
  if (!builder)
    fail("Unsupported", "nothing compiles device code here: import commlib.kernels first");
  const auto [code, symbol] = builder({source_, expression_, here.arch});
  const Cubin cubin{code, symbol};
  return new Function(load_function(source_, cubin, 0));
}

const Function& DeviceCode::on(int device) const {
  std::atomic<const Function*>& known = functions_[device];
  if (const Function* function = known.load(std::memory_order_acquire)) return *function;
  const Function* function = build(device);  // two threads may build it at once: one of them stays
  const Function* expected = nullptr;
  if (known.compare_exchange_strong(expected, function)) return *function;
  delete function;
  return *expected;
}

void DeviceCode::launch(unsigned blocks, unsigned threads, binding::Device device,
                        void* job) const {
  const ContextGuard guard(gpu(device.index).context);
  void* parameters[] = {job};
  launch_kernel(on(device.index), {blocks, threads, 0, true}, stream_on(device), parameters);
}

DeviceCodes::DeviceCodes(void (*each)(const Show&)) { listings().push_back(each); }

namespace {

void set_builder(python::Object* build) { builder = python::Callback(build); }

// ((source, expression), …) of every kernel that a call can need.
python::Object* device_kernels() {
  std::vector<const DeviceCode*> all;
  for (const auto each : listings()) each([&](const DeviceCode& code) { all.push_back(&code); });
  python::Owned made(PyTuple_New(static_cast<python::Size>(all.size())));
  for (size_t i = 0; i < all.size(); ++i) {
    PyTuple_SetItem(made.get(), static_cast<python::Size>(i),
                    python::tuple(binding::To<std::string>::make(all[i]->source()),
                                  binding::To<std::string>::make(all[i]->expression())));
  }
  return made.give();
}

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("set_builder", set_builder, "build",
                             "Callable[[str, str, str], tuple[bytes, str]]"),
              COMMLIB_METHOD("device_kernels", device_kernels, "", "tuple[tuple[str, str], ...]")});
}

}  // namespace

}  // namespace commlib::kernels
