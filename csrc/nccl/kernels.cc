#include "nccl/kernels.h"

#include <map>
#include <mutex>
#include <utility>

namespace commlib::nccl {
namespace {

constexpr unsigned kMaxThreads = 512;  // of any kernel here

}  // namespace

void Shape::check() const {
  const unsigned warps = threads / 32;
  if (threads % 32 != 0 || threads < 32 || threads > kMaxThreads) {
    fail("ValueError", "threads ", threads, " is not a multiple of 32 from 32 to ", kMaxThreads);
  }
  if (blocks < 1 || blocks > kStreamBlocks || blocks * warps > kChannels) {
    fail("ValueError", "blocks ", blocks, " of ", threads, " threads: there is room for ",
         kStreamBlocks, " blocks and ", kChannels * 32, " threads");
  }
  if (tile_bytes % 512 != 0 || tile_bytes < 512 || tile_bytes > kSlotBytes) {
    fail("ValueError", "tile_bytes ", tile_bytes, " is not a multiple of 512 up to ", kSlotBytes);
  }
  if (grain_bytes < 1) fail("ValueError", "grain_bytes is 0");
}

int Kernels::add(Kernel kernel) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].kernel.op == kernel.op && entries_[i].kernel.name == kernel.name)
      return static_cast<int>(i);
  }
  entries_.push_back({std::move(kernel), {}});
  return static_cast<int>(entries_.size()) - 1;
}

namespace {

// Loaded once in a process and kept: communicators come and go, and a graph may still hold the
// code.
struct Loaded {
  std::mutex mutex;
  std::map<std::pair<CUcontext, std::string>, Kernels::Instance> instances;
};
Loaded& loaded() {
  static auto* const kept = new Loaded;
  return *kept;
}

Kernels::Instance load_module(const Cubin& cubin) {
  const Relaxed relaxed;
  Kernels::Instance instance;
  CUmodule module = nullptr;
  check(cuda().cuModuleLoadData(&module, cubin.code.data()), "cuModuleLoadData");
  check(cuda().cuModuleGetFunction(&instance.function, module, cubin.symbol.c_str()),
        "cuModuleGetFunction");
  int max_threads = 0;
  check(cuda().cuFuncGetAttribute(&max_threads, kFunctionMaxThreads, instance.function),
        "cuFuncGetAttribute");
  instance.max_threads = static_cast<unsigned>(max_threads);
  CUdeviceptr unused = 0;
  size_t tiles = 0;  // told by the size of a variable: nothing has to be copied
  if (cuda().cuModuleGetGlobal(&unused, &tiles, module, "commlib_shared_tiles") == kCudaSuccess) {
    instance.shared_tiles = static_cast<unsigned>(tiles);
    check(cuda().cuFuncSetAttribute(instance.function, kFunctionMaxDynamicSharedBytes,
                                    static_cast<int>(tiles * kSlotBytes)),
          "cuFuncSetAttribute");
  }
  return instance;
}

}  // namespace

void Kernels::load(const Kernel& kernel, DType dtype, RedOp redop, Instance* instance) {
  const Cubin cubin =
      builder_(kernel, kernel.reduces ? name_of(dtype) : "", kernel.reduces ? name_of(redop) : "");
  CUcontext context = nullptr;
  check(cuda().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  Loaded& kept = loaded();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  const auto key = std::make_pair(context, std::string(name_of(kernel.op)) + " " + cubin.symbol);
  auto it = kept.instances.find(key);
  if (it == kept.instances.end()) it = kept.instances.emplace(key, load_module(cubin)).first;
  *instance = it->second;
}

void Kernels::launch(const Instance& instance, const Job& job, const Moves& moves, unsigned blocks,
                     unsigned threads, CUstream stream) {
  // A kernel that only takes a job does not read the second one.
  void* parameters[] = {const_cast<Job*>(&job), const_cast<Moves*>(&moves)};
  // The next kernel may take its place on the GPU before the one ahead has ended: kernels here
  // begin by waiting for that (wait_for_stream), and a quarter of a microsecond is won.
  CUlaunchAttribute early{};
  early.id = kLaunchProgrammaticStreamSerialization;
  early.value.programmatic_stream_serialization = 1;
  const unsigned shared = instance.shared_tiles * job.tile_bytes;
  const CUlaunchConfig config = {blocks, 1, 1, threads, 1, 1, shared, stream, &early, 1};
  check(cuda().cuLaunchKernelEx(&config, instance.function, parameters, nullptr),
        "cuLaunchKernelEx");
}

}  // namespace commlib::nccl
