#include "binding/device_code.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <mutex>

#include "binding/entry.h"
#include "binding/python.h"

namespace commlib::binding {
namespace {

namespace ffi = tvm::ffi;

// build(source, expression, arch) returns [cubin, symbol]; commlib/kernels/device.py gives it.
ffi::Function& builder() {
  static auto* const kept = new ffi::Function;
  return *kept;
}

std::mutex& building() {
  static auto* const kept = new std::mutex;
  return *kept;
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
  Gpu found;
  CUdevice device = 0;
  check(cuda().cuDeviceGet(&device, ordinal), "cuDeviceGet");
  check(cuda().cuDevicePrimaryCtxRetain(&found.context, device), "cuDevicePrimaryCtxRetain");
  found.multiprocessors = static_cast<unsigned>(attribute(kMultiprocessorCount, device));
  found.arch = text("sm_", attribute(kComputeCapabilityMajor, device),
                    attribute(kComputeCapabilityMinor, device));
  const ContextGuard guard(found.context);
  found.counters = zeroed_words(kCounters + 1);
  found.answer = found.counters + kCounters;
  return found;
}

uint64_t resets[kMaxDevices][kCounters] = {};
std::mutex resetting;

}  // namespace

const Gpu& gpu(int device) {
  static std::atomic<const Gpu*> known[kMaxDevices] = {};
  if (device < 0 || device >= kMaxDevices)
    fail("Unsupported", "device cuda:", device, ": kernels serve the first ", kMaxDevices, " GPUs");
  if (const Gpu* found = known[device].load(std::memory_order_acquire)) return *found;
  const std::lock_guard<std::mutex> lock(building());
  if (!known[device].load()) known[device].store(new Gpu(find_gpu(device)));
  return *known[device].load();
}

CUstream stream_on(DLDevice device) {
  void* stream = nullptr;
  if (python::api.torch->current_work_stream(device.device_type, device.device_id, &stream) != 0)
    throw Interrupted();  // torch has set the Python error
  return static_cast<CUstream>(stream);
}

ffi::Tensor memory_on(DLDevice device, int64_t words) {
  DLTensor like = {};
  like.device = device;
  like.dtype = {kDLInt, 32, 1};
  like.ndim = 1;
  like.shape = &words;
  const auto refuse = [](void* message, const char*, const char* text) {
    *static_cast<std::string*>(message) = text;
  };
  std::string message;
  DLManagedTensorVersioned* made = nullptr;
  if (python::api.torch->managed_tensor_allocator(&like, &made, &message, refuse) != 0)
    fail("RuntimeError", "torch has no memory for ", words, " words on cuda:", device.device_id,
         ": ", message);
  return ffi::Tensor::FromDLPackVersioned(made);
}

int64_t read_counter(int device, Counter counter, bool reset) {
  const Gpu& here = gpu(device);
  const ContextGuard guard(here.context);
  const CUstream stream = stream_on({kDLCUDA, device});
  uint64_t count = 0;
  check(cuda().cuMemcpyDtoHAsync(&count, device_pointer(here.counters + counter), sizeof count,
                                 stream),
        "cuMemcpyDtoHAsync");
  check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
  const std::lock_guard<std::mutex> lock(resetting);
  const auto since = static_cast<int64_t>(count - resets[device][counter]);
  if (reset) resets[device][counter] = count;
  return since;
}

const Function* DeviceCode::build(int device) const {
  const Gpu& here = gpu(device);
  if (!builder().defined())
    fail("Unsupported", "nothing compiles device code here: import commlib.kernels first");
  const auto built = builder()(source_, expression_, here.arch).cast<ffi::Array<ffi::Any>>();
  const Cubin cubin{std::string(built[0].cast<ffi::Bytes>()),
                    std::string(built[1].cast<ffi::String>())};
  return new Function(load_function(source_, cubin, 0));
}

const Function& DeviceCode::on(int device) const {
  std::atomic<const Function*>& known = functions_[device];
  if (const Function* function = known.load(std::memory_order_acquire)) return *function;
  const Function* function = build(device);  // two threads may build it at once: one is kept
  const Function* expected = nullptr;
  if (known.compare_exchange_strong(expected, function)) return *function;
  delete function;
  return *expected;
}

void DeviceCode::launch(unsigned blocks, unsigned threads, DLDevice device, void* job) const {
  const ContextGuard guard(gpu(device.device_id).context);
  void* parameters[] = {job};
  launch_kernel(on(device.device_id), {blocks, threads, 0, true}, stream_on(device), parameters);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("commlib.kernels.set_builder", [](ffi::Function build) {
    guarded([&] {
      connect_interpreter();
      builder() = build;
    });
  });
}

}  // namespace commlib::binding
