// Takes NCCL's place where several ranks share one GPU, which NCCL refuses: memory that all ranks
// map, under the names of nccl.h that csrc/nccl uses. It has no collectives: those of NCCL fail.
//
// Memory is the driver's, exported as file descriptors, which go to the peers over sockets of names
// that only ranks of one communicator know.
#include <cuda.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

// Exported functions have these in their types.
struct Memory {
  CUmemGenericAllocationHandle handle;
  size_t bytes;
};
struct Comm {
  int rank, world, listener;
  std::string name;
};
struct Window {
  std::vector<CUdeviceptr> peers;  // this rank's too
  std::vector<Memory> mapped;      // those of peers
};

namespace {

constexpr int kOk = 0, kCudaError = 1, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5;
constexpr int kWaitMs = 30'000;

thread_local std::string last_error = "no error";

int fail(int code, const std::string& why) {
  last_error = why;
  return code;
}

#define CUDA(call)                                                                  \
  do {                                                                              \
    const CUresult result = (call);                                                 \
    const char* words = "";                                                         \
    if (result != CUDA_SUCCESS && cuGetErrorString(result, &words) == CUDA_SUCCESS) \
      return fail(kCudaError, std::string(#call) + ": " + words);                   \
  } while (0)

std::mutex mutex;
std::map<void*, Memory> memories;

CUmemAllocationProp properties() {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  cuCtxGetDevice(&wanted.location.id);
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wanted;
}

int map(const Memory& memory, CUdeviceptr* at) {
  const CUmemAccessDesc access{properties().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUDA(cuMemAddressReserve(at, memory.bytes, 0, 0, 0));
  CUDA(cuMemMap(*at, memory.bytes, 0, memory.handle, 0));
  CUDA(cuMemSetAccess(*at, memory.bytes, &access, 1));
  return kOk;
}

int unmap(CUdeviceptr at, const Memory& memory) {
  CUDA(cuMemUnmap(at, memory.bytes));
  CUDA(cuMemRelease(memory.handle));
  CUDA(cuMemAddressFree(at, memory.bytes));
  return kOk;
}

socklen_t address(const Comm& comm, int rank, sockaddr_un* to) {
  const std::string name = comm.name + "/" + std::to_string(rank);
  *to = {};
  to->sun_family = AF_UNIX;
  memcpy(to->sun_path + 1, name.data(), name.size());  // a leading 0: no file
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// A rank and a file descriptor of its memory.
struct Parcel {
  int rank = 0, fd = -1;

  bool travel(int over, bool sends) {
    iovec io{&rank, sizeof(rank)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    if (!sends) {
      if (recvmsg(over, &message, 0) != sizeof(rank)) return false;
      memcpy(&fd, CMSG_DATA(head), sizeof(fd));
      return true;
    }
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    return sendmsg(over, &message, 0) == sizeof(rank);
  }
};

bool send_to(const Comm& comm, int peer, int fd) {
  sockaddr_un to;
  const socklen_t length = address(comm, peer, &to);
  const int over = socket(AF_UNIX, SOCK_STREAM, 0);
  Parcel parcel{comm.rank, fd};
  const bool sent =
      connect(over, reinterpret_cast<sockaddr*>(&to), length) == 0 && parcel.travel(over, true);
  close(over);
  return sent;
}

bool receive(const Comm& comm, Parcel* parcel) {
  pollfd ready{comm.listener, POLLIN, 0};
  if (poll(&ready, 1, kWaitMs) != 1) return false;
  const int over = accept(comm.listener, nullptr, nullptr);
  const bool came = parcel->travel(over, false);
  close(over);
  return came;
}

}  // namespace

extern "C" {

// Every rank's before any registers memory. Null: errno says why.
Comm* one_gpu_open(int rank, int world, const char* name) {
  auto* comm = new Comm{rank, world, socket(AF_UNIX, SOCK_STREAM, 0), name};
  sockaddr_un here;
  const socklen_t length = address(*comm, rank, &here);
  if (bind(comm->listener, reinterpret_cast<sockaddr*>(&here), length) == 0 &&
      listen(comm->listener, world) == 0)
    return comm;
  delete comm;
  return nullptr;
}

int ncclGetVersion(int* version) {
  *version = 23007;
  return kOk;
}
const char* ncclGetErrorString(int code) { return code == kOk ? "no error" : "an error"; }
const char* ncclGetLastError(Comm*) { return last_error.c_str(); }

int ncclCommGetAsyncError(Comm*, int* state) { return *state = kOk; }
int ncclCommCount(Comm* comm, int* count) { return *count = comm->world, kOk; }
int ncclCommUserRank(Comm* comm, int* rank) { return *rank = comm->rank, kOk; }
int ncclCommCuDevice(Comm*, int* device) { return *device = 0; }
int ncclCommFinalize(Comm*) { return kOk; }
int ncclCommDestroy(Comm* comm) {
  close(comm->listener);
  delete comm;
  return kOk;
}
int ncclCommAbort(Comm* comm) { return ncclCommDestroy(comm); }

int ncclMemAlloc(void** pointer, size_t bytes) {
  const CUmemAllocationProp wanted = properties();
  size_t unit = 0;
  CUDA(cuMemGetAllocationGranularity(&unit, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  Memory made{0, (bytes + unit - 1) / unit * unit};
  CUDA(cuMemCreate(&made.handle, made.bytes, &wanted, 0));
  CUdeviceptr at = 0;
  if (const int failed = map(made, &at)) return failed;
  *pointer = reinterpret_cast<void*>(at);
  const std::lock_guard<std::mutex> lock(mutex);
  memories[*pointer] = made;
  return kOk;
}

int ncclMemFree(void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = memories.find(pointer);
  if (found == memories.end()) return fail(kInvalidArgument, "no memory of ncclMemAlloc's");
  const int failed = unmap(reinterpret_cast<CUdeviceptr>(pointer), found->second);
  memories.erase(found);
  return failed;
}

int ncclCommWindowRegister(Comm* comm, void* base, size_t, Window** window, int) {
  Memory own{};
  {
    const std::lock_guard<std::mutex> lock(mutex);
    own = memories.at(base);
  }
  int fd = -1;
  CUDA(cuMemExportToShareableHandle(&fd, own.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  for (int peer = 0; peer < comm->world; ++peer)
    if (peer != comm->rank && !send_to(*comm, peer, fd))
      return fail(kSystemError, "no socket of rank " + std::to_string(peer));
  close(fd);
  auto* made = new Window;
  made->peers.resize(static_cast<size_t>(comm->world));
  made->mapped.resize(made->peers.size());
  made->peers[static_cast<size_t>(comm->rank)] = reinterpret_cast<CUdeviceptr>(base);
  for (int i = 1; i < comm->world; ++i) {
    Parcel parcel;
    if (!receive(*comm, &parcel)) return fail(kSystemError, "a rank did not send its memory");
    const auto peer = static_cast<size_t>(parcel.rank);
    Memory& theirs = made->mapped[peer];
    theirs.bytes = own.bytes;
    CUDA(cuMemImportFromShareableHandle(&theirs.handle,
                                        reinterpret_cast<void*>(static_cast<intptr_t>(parcel.fd)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(parcel.fd);
    if (const int failed = map(theirs, &made->peers[peer])) return failed;
  }
  *window = made;
  return kOk;
}

int ncclCommWindowDeregister(Comm* comm, Window* window) {
  for (size_t peer = 0; peer < window->peers.size(); ++peer) {
    if (peer == static_cast<size_t>(comm->rank)) continue;
    if (const int failed = unmap(window->peers[peer], window->mapped[peer])) return failed;
  }
  delete window;
  return kOk;
}

int ncclGetPeerDevicePointer(Window* window, size_t offset, int peer, void** pointer) {
  *pointer = reinterpret_cast<void*>(window->peers[static_cast<size_t>(peer)] + offset);
  return kOk;
}

#define NO_COLLECTIVE(name) \
  int name() { return fail(kInvalidUsage, #name " needs a GPU for each rank"); }
NO_COLLECTIVE(ncclAllReduce)
NO_COLLECTIVE(ncclBroadcast)
NO_COLLECTIVE(ncclReduce)
NO_COLLECTIVE(ncclAllGather)
NO_COLLECTIVE(ncclReduceScatter)
NO_COLLECTIVE(ncclSend)
NO_COLLECTIVE(ncclRecv)
NO_COLLECTIVE(ncclGroupStart)
NO_COLLECTIVE(ncclGroupEnd)
NO_COLLECTIVE(ncclRedOpCreatePreMulSum)
NO_COLLECTIVE(ncclRedOpDestroy)

}  // extern "C"
