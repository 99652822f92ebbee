#include "cuda/api.h"

#include <dlfcn.h>

namespace commlib {
namespace {

template <class Function>
void bind(void* library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
  if (!function)
    fail("Unsupported", "the NVIDIA driver has no ", symbol,
         "; commlib needs driver 520 or newer (CUDA 11.8), or use backend='shm'");
}

CUresult (*capture_info_v2)(CUstream, CUcaptureStatus*, uint64_t* id, void* graph, void* nodes,
                            size_t* num_nodes) = nullptr;

void bind_capture_info(void* library, CudaApi& api) {
  using Query = CUresult (*)(CUstream, CUcaptureStatus*, uint64_t*);
  api.cuStreamGetCaptureInfo = reinterpret_cast<Query>(dlsym(library, "cuStreamGetCaptureInfo"));
  if (api.cuStreamGetCaptureInfo) return;
  bind(library, "cuStreamGetCaptureInfo_v2", capture_info_v2);
  api.cuStreamGetCaptureInfo = [](CUstream stream, CUcaptureStatus* status, uint64_t* id) {
    return capture_info_v2(stream, status, id, nullptr, nullptr, nullptr);
  };
}

CudaApi load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library)
    fail("Unsupported", "no NVIDIA driver (", dlerror(),
         "); install it, start the container with its GPUs, or use backend='shm'");
  CudaApi api;
  bind(library, "cuInit", api.cuInit);
  bind(library, "cuDriverGetVersion", api.cuDriverGetVersion);
  bind(library, "cuGetErrorName", api.cuGetErrorName);
  bind(library, "cuGetErrorString", api.cuGetErrorString);

  bind(library, "cuDeviceGet", api.cuDeviceGet);
  bind(library, "cuDeviceGetAttribute", api.cuDeviceGetAttribute);
  bind(library, "cuDeviceGetUuid_v2", api.cuDeviceGetUuid);
  bind(library, "cuDeviceCanAccessPeer", api.cuDeviceCanAccessPeer);
  bind(library, "cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain);
  bind(library, "cuDevicePrimaryCtxRelease_v2", api.cuDevicePrimaryCtxRelease);
  bind(library, "cuCtxSetCurrent", api.cuCtxSetCurrent);
  bind(library, "cuCtxGetCurrent", api.cuCtxGetCurrent);
  bind(library, "cuCtxGetDevice", api.cuCtxGetDevice);
  bind(library, "cuCtxSynchronize", api.cuCtxSynchronize);

  bind(library, "cuCtxGetStreamPriorityRange", api.cuCtxGetStreamPriorityRange);
  bind(library, "cuStreamCreate", api.cuStreamCreate);
  bind(library, "cuStreamCreateWithPriority", api.cuStreamCreateWithPriority);
  bind(library, "cuStreamDestroy_v2", api.cuStreamDestroy);
  bind(library, "cuStreamSynchronize", api.cuStreamSynchronize);
  bind(library, "cuStreamQuery", api.cuStreamQuery);
  bind(library, "cuStreamWaitEvent", api.cuStreamWaitEvent);
  bind(library, "cuStreamIsCapturing", api.cuStreamIsCapturing);
  bind_capture_info(library, api);
  bind(library, "cuThreadExchangeStreamCaptureMode", api.cuThreadExchangeStreamCaptureMode);
  bind(library, "cuLaunchHostFunc", api.cuLaunchHostFunc);
  bind(library, "cuEventCreate", api.cuEventCreate);
  bind(library, "cuEventRecord", api.cuEventRecord);
  bind(library, "cuEventQuery", api.cuEventQuery);
  bind(library, "cuEventSynchronize", api.cuEventSynchronize);
  bind(library, "cuEventDestroy_v2", api.cuEventDestroy);

  bind(library, "cuMemAlloc_v2", api.cuMemAlloc);
  bind(library, "cuMemFree_v2", api.cuMemFree);
  bind(library, "cuMemHostAlloc", api.cuMemHostAlloc);
  bind(library, "cuMemFreeHost", api.cuMemFreeHost);
  bind(library, "cuMemHostGetDevicePointer_v2", api.cuMemHostGetDevicePointer);
  bind(library, "cuMemRetainAllocationHandle", api.cuMemRetainAllocationHandle);
  bind(library, "cuMemRelease", api.cuMemRelease);
  bind(library, "cuMemAddressReserve", api.cuMemAddressReserve);
  bind(library, "cuMemAddressFree", api.cuMemAddressFree);
  bind(library, "cuMemMap", api.cuMemMap);
  bind(library, "cuMemUnmap", api.cuMemUnmap);
  bind(library, "cuMemSetAccess", api.cuMemSetAccess);
  bind(library, "cuMemcpyHtoDAsync_v2", api.cuMemcpyHtoDAsync);
  bind(library, "cuMemcpyDtoHAsync_v2", api.cuMemcpyDtoHAsync);
  bind(library, "cuMemcpyDtoDAsync_v2", api.cuMemcpyDtoDAsync);
  bind(library, "cuMemcpy2DAsync_v2", api.cuMemcpy2DAsync);
  bind(library, "cuMemcpyAsync", api.cuMemcpyAsync);
  bind(library, "cuMemsetD8Async", api.cuMemsetD8Async);
  bind(library, "cuMemsetD32Async", api.cuMemsetD32Async);
  bind(library, "cuPointerGetAttribute", api.cuPointerGetAttribute);
  bind(library, "cuPointerGetAttributes", api.cuPointerGetAttributes);

  bind(library, "cuModuleLoadData", api.cuModuleLoadData);
  bind(library, "cuModuleUnload", api.cuModuleUnload);
  bind(library, "cuModuleGetFunction", api.cuModuleGetFunction);
  bind(library, "cuModuleGetGlobal_v2", api.cuModuleGetGlobal);
  bind(library, "cuFuncGetAttribute", api.cuFuncGetAttribute);
  bind(library, "cuFuncSetAttribute", api.cuFuncSetAttribute);
  bind(library, "cuLaunchKernel", api.cuLaunchKernel);
  bind(library, "cuLaunchKernelEx", api.cuLaunchKernelEx);

  const CUresult started = api.cuInit(0);
  if (started != kCudaSuccess) {
    const char* name = nullptr;
    api.cuGetErrorName(started, &name);
    fail("Unsupported", "cuInit: ", name ? name : "unknown error",
         "; no usable GPU here: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use backend='shm'");
  }
  return api;
}

}  // namespace

const CudaApi& cuda() {
  static const CudaApi api = load();  // a throw leaves it unmade: the next call tries again
  return api;
}

void throw_cuda(CUresult result, const char* what) {
  const char* name = nullptr;
  const char* text = nullptr;
  cuda().cuGetErrorName(result, &name);
  cuda().cuGetErrorString(result, &text);
  fail("CommError", what, ": ", name ? name : "CUDA error", " (", result, ")", text ? ", " : "",
       text ? text : "");
}

}  // namespace commlib
