#include "nccl/nccl_api.h"

#include <dlfcn.h>

#include <mutex>
#include <utility>

namespace commlib::nccl {
namespace {

constexpr const char* kSoname = "libnccl.so.2";

std::mutex hint_mutex;
std::string hint_path;

void* open_library() {
  std::string reason;
  {
    const std::lock_guard<std::mutex> lock(hint_mutex);
    if (!hint_path.empty()) {
      if (void* library = dlopen(hint_path.c_str(), RTLD_NOW)) return library;
      reason = text(dlerror(), "; ");
    }
  }
  // The copy that is already here, if there is one.
  if (void* library = dlopen(kSoname, RTLD_NOW)) return library;
  fail("Unsupported", "no NCCL (", reason, dlerror(),
       "); install torch for CUDA or nvidia-nccl-cu13, or use backend='shm'");
}

template <class Function>
void bind_optional(void* library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
}

template <class Function>
void bind(void* library, const char* symbol, Function*& function) {
  bind_optional(library, symbol, function);
  if (!function) fail("Unsupported", "NCCL has no ", symbol, "; commlib needs NCCL 2.19 or newer");
}

NcclApi load() {
  void* library = open_library();
  NcclApi api;
  bind(library, "ncclGetVersion", api.ncclGetVersion);
  bind(library, "ncclGetErrorString", api.ncclGetErrorString);
  bind(library, "ncclGetLastError", api.ncclGetLastError);

  bind(library, "ncclCommGetAsyncError", api.ncclCommGetAsyncError);
  bind(library, "ncclCommCount", api.ncclCommCount);
  bind(library, "ncclCommUserRank", api.ncclCommUserRank);
  bind(library, "ncclCommCuDevice", api.ncclCommCuDevice);
  bind(library, "ncclCommAbort", api.ncclCommAbort);
  bind(library, "ncclCommDestroy", api.ncclCommDestroy);
  bind(library, "ncclCommFinalize", api.ncclCommFinalize);

  bind(library, "ncclAllReduce", api.ncclAllReduce);
  bind(library, "ncclBroadcast", api.ncclBroadcast);
  bind(library, "ncclReduce", api.ncclReduce);
  bind(library, "ncclAllGather", api.ncclAllGather);
  bind(library, "ncclReduceScatter", api.ncclReduceScatter);
  bind(library, "ncclSend", api.ncclSend);
  bind(library, "ncclRecv", api.ncclRecv);
  bind(library, "ncclGroupStart", api.ncclGroupStart);
  bind(library, "ncclGroupEnd", api.ncclGroupEnd);
  bind(library, "ncclRedOpCreatePreMulSum", api.ncclRedOpCreatePreMulSum);
  bind(library, "ncclRedOpDestroy", api.ncclRedOpDestroy);

  bind_optional(library, "ncclMemAlloc", api.ncclMemAlloc);
  bind_optional(library, "ncclMemFree", api.ncclMemFree);
  bind_optional(library, "ncclCommWindowRegister", api.ncclCommWindowRegister);
  bind_optional(library, "ncclCommWindowDeregister", api.ncclCommWindowDeregister);
  bind_optional(library, "ncclCommRevoke", api.ncclCommRevoke);
  bind_optional(library, "ncclGetPeerDevicePointer", api.ncclGetPeerDevicePointer);
  bind_optional(library, "ncclGetLsaDevicePointer", api.ncclGetLsaDevicePointer);
  bind_optional(library, "ncclCommQueryProperties", api.ncclCommQueryProperties);

  if (api.ncclGetVersion(&api.version) != ncclSuccess)
    fail("Unsupported", "ncclGetVersion failed; install NCCL again");
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(api.ncclGetVersion), &where) != 0 && where.dli_fname)
    api.path = where.dli_fname;
  return api;
}

}  // namespace

void nccl_hint(std::string path) {
  const std::lock_guard<std::mutex> lock(hint_mutex);
  hint_path = std::move(path);
}

const NcclApi& nccl() {
  static const NcclApi api = load();  // a throw leaves it unmade: the next call tries again
  return api;
}

std::string version_text(int version) {
  // 2.8 and older counted in thousands.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return text(major, ".", minor, ".", version % 100);
}

int nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f8e4m3:
      return ncclFloat8e4m3;
    case DType::f8e5m2:
      return ncclFloat8e5m2;
    case DType::i8:
      return ncclInt8;
    case DType::u8:
      return ncclUint8;
    case DType::i32:
      return ncclInt32;
    case DType::u32:
      return ncclUint32;
    case DType::i64:
      return ncclInt64;
    case DType::u64:
      return ncclUint64;
    default:
      return -1;
  }
}

int nccl_redop(RedOp op) {
  switch (op) {
    case RedOp::sum:
      return ncclSum;
    case RedOp::prod:
      return ncclProd;
    case RedOp::min:
      return ncclMin;
    case RedOp::max:
      return ncclMax;
    case RedOp::avg:
      return ncclAvg;
    default:
      return -1;
  }
}

void throw_nccl(ncclResult_t result, const char* what) {
  const char* last = nccl().ncclGetLastError(nullptr);
  const bool has_message = last && *last;
  fail("CommError", what, ": ", nccl().ncclGetErrorString(result), " (NCCL ",
       version_text(nccl().version), ", result ", static_cast<int>(result), ")",
       has_message ? "; last error: " : "", has_message ? last : "");
}

}  // namespace commlib::nccl
