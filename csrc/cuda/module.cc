#include "cuda/module.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace commlib {
namespace {

struct Loaded {
  std::mutex mutex;
  std::map<std::pair<CUcontext, std::string>, Function> functions;
};
Loaded& loaded() {
  static auto* const instance = new Loaded;
  return *instance;
}

Function load(const Cubin& cubin, size_t tile_bytes, bool marked) {
  const Relaxed relaxed;
  Function function;
  CUmodule module = nullptr;
  check(cuda().cuModuleLoadData(&module, cubin.code.data()), "cuModuleLoadData");
  check(cuda().cuModuleGetFunction(&function.handle, module, cubin.symbol.c_str()),
        "cuModuleGetFunction");
  const auto attribute = [&](CUfunctionAttribute which) {
    int value = 0;
    check(cuda().cuFuncGetAttribute(&value, which, function.handle), "cuFuncGetAttribute");
    return static_cast<unsigned>(value);
  };
  function.max_threads = attribute(kFunctionMaxThreads);
  function.cluster_blocks = std::max(attribute(kFunctionClusterBlocks), 1u);
  // Told by the size of a variable: nothing has to be copied.
  const auto room_for = [&](const char* variable) {
    CUdeviceptr unused = 0;
    size_t tiles = 0;
    const bool present =
        tile_bytes > 0 &&  // to ask for what is not there alarms memory checkers
        cuda().cuModuleGetGlobal(&unused, &tiles, module, variable) == kCudaSuccess;
    return present ? static_cast<unsigned>(tiles) : 0;
  };
  function.shared_tiles = room_for("commlib_shared_tiles");
  function.shared_slots = function.shared_tiles > 0 ? 0 : room_for("commlib_shared_slots");
  if (const size_t tiles = function.shared_tiles + function.shared_slots; tiles > 0) {
    check(cuda().cuFuncSetAttribute(function.handle, kFunctionMaxDynamicSharedBytes,
                                    static_cast<int>(tiles * tile_bytes)),
          "cuFuncSetAttribute");
  }
  if (marked) {
    check(cuda().cuModuleGetGlobal(&function.marks, &function.mark_bytes, module, "commlib_marks"),
          "cuModuleGetGlobal");
  }
  return function;
}

int highest_priority() {
  static const int highest = [] {
    int lowest = 0, highest = 0;
    check(cuda().cuCtxGetStreamPriorityRange(&lowest, &highest), "cuCtxGetStreamPriorityRange");
    return highest;
  }();
  return highest;
}

}  // namespace

Function load_function(const std::string& name, const Cubin& cubin, size_t tile_bytes,
                       bool marked) {
  CUcontext context = nullptr;
  check(cuda().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  Loaded& cache = loaded();
  const std::lock_guard<std::mutex> lock(cache.mutex);
  const auto key = std::make_pair(context, name + (marked ? " marked " : " ") + cubin.symbol);
  auto it = cache.functions.find(key);
  if (it == cache.functions.end())
    it = cache.functions.emplace(key, load(cubin, tile_bytes, marked)).first;
  return it->second;
}

void launch_kernel(const Function& function, const Grid& grid, CUstream stream, void** parameters) {
  CUlaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (grid.early) {
    attributes[count].id = kLaunchProgrammaticStreamSerialization;
    attributes[count++].value.programmatic_stream_serialization = 1;
  }
  if (grid.urgent) {
    attributes[count].id = kLaunchPriority;
    attributes[count++].value.priority = highest_priority();
  }
  const CUlaunchConfig config = {grid.blocks,       1,      1,          grid.threads, 1, 1,
                                 grid.shared_bytes, stream, attributes, count};
  check(cuda().cuLaunchKernelEx(&config, function.handle, parameters, nullptr), "cuLaunchKernelEx");
}

}  // namespace commlib
