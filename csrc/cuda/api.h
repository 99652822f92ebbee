// The driver's functions, bound at first use: the library is built and loads without CUDA.
//
// Types and values are those of cuda.h (its ABI never changes); functions go by its names, without
// the version suffix that its #defines hide.
#pragma once

#include <cstddef>
#include <cstdint>

#include "commlib/check.h"

namespace commlib {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUhostFn = void (*)(void*);
using CUallocationHandle = unsigned long long;
struct CUuuid {
  char bytes[16];
};

constexpr CUresult kCudaSuccess = 0;
constexpr CUresult kCudaErrorInvalidValue = 1;
constexpr CUresult kCudaErrorDeinitialized = 4;  // the process ends
constexpr CUresult kCudaErrorNotReady = 600;

struct CUmemAccessDesc {
  int location_type;
  int location_id;
  int flags;
};
static_assert(sizeof(CUmemAccessDesc) == 12, "as in cuda.h");
constexpr int kLocationDevice = 1;
constexpr int kAccessReadWrite = 3;

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostAllocPortable = 1;
constexpr unsigned kHostAllocDeviceMap = 2;

enum CUdeviceAttribute : int {
  kMultiprocessorCount = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
};
enum CUpointerAttribute : int {
  kPointerMemoryType = 2,  // CUmemoryType
  kPointerDeviceOrdinal = 9,
  kPointerRangeStart = 11,
  kPointerRangeSize = 12,
};
enum CUmemoryType : unsigned { kMemoryHost = 1, kMemoryDevice = 2, kMemoryUnified = 4 };
enum CUfunctionAttribute : int {
  kFunctionMaxThreads = 0,
  kFunctionMaxDynamicSharedBytes = 8,
  kFunctionClusterBlocks = 11,
};
enum CUcaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };
enum CUcaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };

enum CUlaunchAttributeID : int {
  kLaunchCooperative = 2,
  kLaunchClusterDimension = 4,
  kLaunchProgrammaticStreamSerialization = 6,
  kLaunchPriority = 8,
};
struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  char pad[4];
  union {
    char bytes[64];
    int cooperative;
    int programmatic_stream_serialization;
    int priority;
    struct {
      unsigned x, y, z;
    } cluster;
  } value;
};
struct CUlaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56, "as in cuda.h");

// CUDA_MEMCPY2D: rows of `width_bytes`, `pitch` apart.
struct CUmemcpy2D {
  size_t from_x, from_y;
  CUmemoryType from_type;
  const void* from_host;
  CUdeviceptr from;
  void* from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  CUmemoryType to_type;
  void* to_host;
  CUdeviceptr to;
  void* to_array;
  size_t to_pitch;
  size_t width_bytes, height;
};
static_assert(sizeof(CUmemcpy2D) == 128, "as in cuda.h");

struct CudaApi {
  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int* version);
  CUresult (*cuGetErrorName)(CUresult, const char** name);
  CUresult (*cuGetErrorString)(CUresult, const char** text);

  CUresult (*cuDeviceGet)(CUdevice*, int ordinal);
  CUresult (*cuDeviceGetAttribute)(int* value, CUdeviceAttribute, CUdevice);
  CUresult (*cuDeviceGetUuid)(CUuuid*, CUdevice);
  CUresult (*cuDeviceCanAccessPeer)(int* can, CUdevice device, CUdevice peer);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice);
  CUresult (*cuDevicePrimaryCtxRelease)(CUdevice);
  CUresult (*cuCtxSetCurrent)(CUcontext);
  CUresult (*cuCtxGetCurrent)(CUcontext*);
  CUresult (*cuCtxGetDevice)(CUdevice*);
  CUresult (*cuCtxSynchronize)();

  CUresult (*cuCtxGetStreamPriorityRange)(int* lowest, int* highest);
  CUresult (*cuStreamCreate)(CUstream*, unsigned flags);
  CUresult (*cuStreamCreateWithPriority)(CUstream*, unsigned flags, int priority);
  CUresult (*cuStreamDestroy)(CUstream);
  CUresult (*cuStreamSynchronize)(CUstream);
  CUresult (*cuStreamQuery)(CUstream);
  CUresult (*cuStreamWaitEvent)(CUstream, CUevent, unsigned flags);
  CUresult (*cuStreamIsCapturing)(CUstream, CUcaptureStatus*);
  CUresult (*cuThreadExchangeStreamCaptureMode)(CUcaptureMode*);
  CUresult (*cuLaunchHostFunc)(CUstream, CUhostFn, void* argument);
  CUresult (*cuEventCreate)(CUevent*, unsigned flags);
  CUresult (*cuEventRecord)(CUevent, CUstream);
  CUresult (*cuEventQuery)(CUevent);
  CUresult (*cuEventSynchronize)(CUevent);
  CUresult (*cuEventDestroy)(CUevent);

  CUresult (*cuMemAlloc)(CUdeviceptr*, size_t bytes);
  CUresult (*cuMemFree)(CUdeviceptr);
  CUresult (*cuMemHostAlloc)(void**, size_t bytes, unsigned flags);
  CUresult (*cuMemFreeHost)(void*);
  CUresult (*cuMemHostGetDevicePointer)(CUdeviceptr*, void* host, unsigned flags);
  CUresult (*cuMemRetainAllocationHandle)(CUallocationHandle*, void* address);
  CUresult (*cuMemRelease)(CUallocationHandle);
  CUresult (*cuMemAddressReserve)(CUdeviceptr*, size_t bytes, size_t alignment, CUdeviceptr hint,
                                  uint64_t flags);
  CUresult (*cuMemAddressFree)(CUdeviceptr, size_t bytes);
  CUresult (*cuMemMap)(CUdeviceptr, size_t bytes, size_t offset, CUallocationHandle,
                       uint64_t flags);
  CUresult (*cuMemUnmap)(CUdeviceptr, size_t bytes);
  CUresult (*cuMemSetAccess)(CUdeviceptr, size_t bytes, const CUmemAccessDesc*, size_t count);
  CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr to, const void* from, size_t bytes, CUstream);
  CUresult (*cuMemcpyDtoHAsync)(void* to, CUdeviceptr from, size_t bytes, CUstream);
  CUresult (*cuMemcpyDtoDAsync)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream);
  CUresult (*cuMemcpy2DAsync)(const CUmemcpy2D*, CUstream);
  CUresult (*cuMemcpyAsync)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream);
  CUresult (*cuMemsetD8Async)(CUdeviceptr, unsigned char value, size_t count, CUstream);
  CUresult (*cuMemsetD32Async)(CUdeviceptr, unsigned value, size_t count, CUstream);
  CUresult (*cuPointerGetAttribute)(void* value, CUpointerAttribute, CUdeviceptr);
  CUresult (*cuPointerGetAttributes)(unsigned count, CUpointerAttribute*, void** values,
                                     CUdeviceptr);

  CUresult (*cuModuleLoadData)(CUmodule*, const void* image);
  CUresult (*cuModuleUnload)(CUmodule);
  CUresult (*cuModuleGetFunction)(CUfunction*, CUmodule, const char* name);
  CUresult (*cuModuleGetGlobal)(CUdeviceptr*, size_t* bytes, CUmodule, const char* name);
  CUresult (*cuFuncGetAttribute)(int* value, CUfunctionAttribute, CUfunction);
  CUresult (*cuFuncSetAttribute)(CUfunction, CUfunctionAttribute, int value);
  CUresult (*cuLaunchKernel)(CUfunction, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream, void** parameters, void** extra);
  CUresult (*cuLaunchKernelEx)(const CUlaunchConfig*, CUfunction, void** parameters, void** extra);

  // Whether the stream is being captured, and if so by which capture (unique in the process). The
  // first version of the call gives just that; later ones also report edges, and may fail on those
  // of programmatic launches.
  CUresult (*cuStreamGetCaptureInfo)(CUstream, CUcaptureStatus*, uint64_t* id);
};

// The functions, after cuInit; throws Unsupported with the reason where there is no driver or no
// GPU.
const CudaApi& cuda();

[[noreturn]] void throw_cuda(CUresult result, const char* what);
inline void check(CUresult result, const char* what) {
  if (__builtin_expect(result != kCudaSuccess, 0)) throw_cuda(result, what);
}

inline CUdeviceptr device_pointer(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// Makes a context current for a scope: a thread may have none, or another GPU's. Does nothing once
// the driver has shut down.
class ContextGuard {
 public:
  explicit ContextGuard(CUcontext context) {
    const CUresult state = cuda().cuCtxGetCurrent(&before_);
    if (state == kCudaErrorDeinitialized) return;
    check(state, "cuCtxGetCurrent");
    changed_ = before_ != context;
    if (changed_) check(cuda().cuCtxSetCurrent(context), "cuCtxSetCurrent");
  }
  ~ContextGuard() {
    if (changed_) cuda().cuCtxSetCurrent(before_);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  CUcontext before_ = nullptr;
  bool changed_ = false;
};

// For a scope: calls that are no part of a capture under way are allowed next to it.
class Relaxed {
 public:
  Relaxed() { cuda().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { cuda().cuThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  CUcaptureMode mode_ = kCaptureRelaxed;
};

}  // namespace commlib
