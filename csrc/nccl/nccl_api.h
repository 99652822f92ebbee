// NCCL's functions, bound at first use to the copy that the process has: torch's, where torch
// brought one. Types and values are those of nccl.h.
#pragma once

#include <cstddef>
#include <string>

#include "commlib/dtype.h"
#include "cuda/api.h"

namespace commlib::nccl {

using ncclComm_t = struct ncclComm*;
using ncclWindow_t = struct ncclWindow_vidmem*;

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
};
// Values from ncclNumOps on are operations made at run time.
enum ncclRedOp_t : int {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
};
enum ncclScalarResidence_t : int { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

constexpr int kWindowCollSymmetric = 1;
constexpr size_t kWindowAlignment = 4096;

struct NcclApi {
  int version;  // 22809 is 2.28.9
  std::string path;

  ncclResult_t (*ncclGetVersion)(int*);
  const char* (*ncclGetErrorString)(ncclResult_t);
  const char* (*ncclGetLastError)(ncclComm_t);

  ncclResult_t (*ncclCommGetAsyncError)(ncclComm_t, ncclResult_t*);
  ncclResult_t (*ncclCommCount)(ncclComm_t, int*);
  ncclResult_t (*ncclCommUserRank)(ncclComm_t, int*);
  ncclResult_t (*ncclCommCuDevice)(ncclComm_t, int*);
  ncclResult_t (*ncclCommAbort)(ncclComm_t);
  ncclResult_t (*ncclCommDestroy)(ncclComm_t);
  ncclResult_t (*ncclCommFinalize)(ncclComm_t);

  ncclResult_t (*ncclAllReduce)(const void* from, void* to, size_t count, ncclDataType_t,
                                ncclRedOp_t, ncclComm_t, CUstream);
  ncclResult_t (*ncclBroadcast)(const void* from, void* to, size_t count, ncclDataType_t, int root,
                                ncclComm_t, CUstream);
  ncclResult_t (*ncclReduce)(const void* from, void* to, size_t count, ncclDataType_t, ncclRedOp_t,
                             int root, ncclComm_t, CUstream);
  ncclResult_t (*ncclAllGather)(const void* from, void* to, size_t send_count, ncclDataType_t,
                                ncclComm_t, CUstream);
  ncclResult_t (*ncclReduceScatter)(const void* from, void* to, size_t recv_count, ncclDataType_t,
                                    ncclRedOp_t, ncclComm_t, CUstream);
  ncclResult_t (*ncclSend)(const void* from, size_t count, ncclDataType_t, int peer, ncclComm_t,
                           CUstream);
  ncclResult_t (*ncclRecv)(void* to, size_t count, ncclDataType_t, int peer, ncclComm_t, CUstream);
  ncclResult_t (*ncclGroupStart)();
  ncclResult_t (*ncclGroupEnd)();
  ncclResult_t (*ncclRedOpCreatePreMulSum)(ncclRedOp_t*, void* scalar, ncclDataType_t,
                                           ncclScalarResidence_t, ncclComm_t);
  ncclResult_t (*ncclRedOpDestroy)(ncclRedOp_t, ncclComm_t);

  // Null where this NCCL is older.
  ncclResult_t (*ncclMemAlloc)(void**, size_t bytes);  // 2.19
  ncclResult_t (*ncclMemFree)(void*);
  ncclResult_t (*ncclCommWindowRegister)(ncclComm_t, void*, size_t bytes, ncclWindow_t*,
                                         int flags);  // 2.27.3
  ncclResult_t (*ncclCommWindowDeregister)(ncclComm_t, ncclWindow_t);
  ncclResult_t (*ncclCommRevoke)(ncclComm_t, int flags);  // 2.28.7
  // 2.29.2; ranks of the communicator, or null for one whose memory cannot be reached.
  ncclResult_t (*ncclGetPeerDevicePointer)(ncclWindow_t, size_t offset, int peer, void**);
  ncclResult_t (*ncclGetLsaDevicePointer)(ncclWindow_t, size_t offset, int lsa_rank, void**);
  void (*ncclCommQueryProperties)();  // 2.29.2: its presence only, the struct is versioned
};

// The library that communicators belong to; call it before the first nccl().
void nccl_hint(std::string path);
// Throws Unsupported with the reason where there is no NCCL.
const NcclApi& nccl();

// Whether NCCL's kernels on symmetric memory wait for the kernel ahead to be done. Those of 2.28.3
// to 2.30.4 do not, and 2.28.9's reduce-scatter is wrong on blocks that are not whole words of 4
// bytes.
inline bool symmetric_kernels_wait() { return nccl().version >= 23007; }

// "2.28.9"
std::string version_text(int version);

// NCCL's code, or -1 where it has none. Elements that are only moved travel as ncclInt8 bytes.
int nccl_type(DType dtype);
int nccl_redop(RedOp op);

// Also ncclInProgress throws: communicators here are blocking ones.
[[noreturn]] void throw_nccl(ncclResult_t result, const char* what);
using commlib::check;  // of the driver's results
inline void check(ncclResult_t result, const char* what) {
  if (__builtin_expect(result != ncclSuccess, 0)) throw_nccl(result, what);
}

}  // namespace commlib::nccl
