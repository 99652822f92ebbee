#include "nccl/arena.h"

#include <string>

#include "commlib/job.h"

namespace commlib::nccl {
namespace {

constexpr size_t kGranule = size_t{2} << 20;  // of device memory that can be mapped by peers
constexpr int kHostPointersSince = 22902;     // ncclGetPeerDevicePointer; null where unsupported

// The head of ncclWindow_vidmem as NCCL 2.28.3, 2.28.7 and 2.28.9 have it (nccl_device/impl/
// core__types.h). These have no host function for peers' addresses, and their device headers do not
// compile under NVRTC; later ones have the function, so no other layout is ever needed.
struct WindowHead {
  void* host;
  unsigned char* lsa_base;  // where this GPU sees rank 0 of the ranks that share memory
  int lsa_rank;
  int world_rank;
  uint32_t stride_4g;  // distance of two ranks' memories, in units of 4 GiB
  uint32_t multicast_offset;
};
static_assert(offsetof(WindowHead, lsa_base) == 8 && offsetof(WindowHead, lsa_rank) == 16 &&
                  offsetof(WindowHead, world_rank) == 20 && offsetof(WindowHead, stride_4g) == 24 &&
                  sizeof(WindowHead) == 32,
              "as in NCCL 2.28");

bool has_window_layout(int version) { return version >= 22803 && version < 22900; }

size_t round_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string here() { return text("NCCL ", version_text(nccl().version)); }

bool is_device_memory(const void* pointer) {
  unsigned type = 0;
  const CUresult known =
      cuda().cuPointerGetAttribute(&type, kPointerMemoryType, device_pointer(pointer));
  return known == kCudaSuccess && type == kMemoryDevice;
}

}  // namespace

Arena::Arena(ncclComm_t comm, int rank, int world, size_t fixed_bytes, size_t user_bytes)
    : comm_(comm),
      rank_(rank),
      world_(world),
      user_first_(round_to(fixed_bytes, kProofBytes)),
      bytes_(round_to(user_first_ + Allocator::rounded(user_bytes) + kProofBytes, kGranule)),
      allocator_(user_bytes > 0 ? Allocator::rounded(user_bytes) : 0) {
  const auto max_ranks = static_cast<int>((kProofBytes - kProofCopies) / sizeof(uint64_t));
  if (world > max_ranks)
    fail("Unsupported", "symmetric memory serves up to ", max_ranks, " ranks, not ", world);
  int ordinal = 0;
  check(nccl().ncclCommCuDevice(comm_, &ordinal), "ncclCommCuDevice");
  check(cuda().cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  check(cuda().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

void Arena::acquire() {
  const NcclApi& api = nccl();
  if (!api.ncclMemAlloc || !api.ncclMemFree || !api.ncclCommWindowRegister ||
      !api.ncclCommWindowDeregister) {
    fail("Unsupported", here(),
         " has no symmetric windows; commlib needs 2.28.3 or newer for them");
  }
  if (!api.ncclGetPeerDevicePointer && !has_window_layout(api.version))
    fail("Unsupported", here(), " does not tell peers' addresses; 2.28.3 or newer does");
  const ContextGuard guard(context_);
  check(cuda().cuStreamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate");
  void* memory = nullptr;
  check(api.ncclMemAlloc(&memory, bytes_),
        text("allocating ", bytes_, " bytes of symmetric memory (lower max_bytes= or ",
             "COMMLIB_MAX_BYTES if the GPU is full): ncclMemAlloc")
            .c_str());
  base_ = static_cast<unsigned char*>(memory);
  // ncclMemAlloc falls back to cudaMalloc in silence, and peers cannot map that.
  CUallocationHandle handle = 0;
  if (cuda().cuMemRetainAllocationHandle(&handle, base_) != kCudaSuccess) {
    fail("Unsupported",
         "ncclMemAlloc gave memory that peers cannot map: NCCL_CUMEM_ENABLE=0 is set (also look in "
         "/etc/nccl.conf and ~/.nccl.conf), or this driver has no virtual memory management");
  }
  plain_ = map_again(handle);
  for_sends_ = map_again(handle);
  check(cuda().cuMemRelease(handle), "cuMemRelease");
  // Flags and packets start from zero, and so does the proof page; empty slots that have no flag
  // have all bits set (device/packet.cuh).
  const CUdeviceptr base = device_pointer(base_);
  const Places at = places(static_cast<u64>(world_));
  check(cuda().cuMemsetD8Async(base, 0, user_first_, stream_), "cuMemsetD8Async");
  check(cuda().cuMemsetD8Async(base + at.lamport, 0xff, at.tile_blocks - at.lamport, stream_),
        "cuMemsetD8Async");
  check(cuda().cuMemsetD8Async(base + proof(), 0, kProofBytes, stream_), "cuMemsetD8Async");
  check(cuda().cuStreamSynchronize(stream_), "zeroing symmetric memory");
}

unsigned char* Arena::map_again(CUallocationHandle handle) const {
  const std::string what = text("mapping ", bytes_, " bytes of symmetric memory again (lower ",
                                "max_bytes= or COMMLIB_MAX_BYTES if there is no room): ");
  CUdeviceptr address = 0;
  check(cuda().cuMemAddressReserve(&address, bytes_, 0, 0, 0),
        (what + "cuMemAddressReserve").c_str());
  check(cuda().cuMemMap(address, bytes_, 0, handle, 0), (what + "cuMemMap").c_str());
  const CUmemAccessDesc access = {kLocationDevice, device_, kAccessReadWrite};
  check(cuda().cuMemSetAccess(address, bytes_, &access, 1), (what + "cuMemSetAccess").c_str());
  return reinterpret_cast<unsigned char*>(address);
}

void Arena::register_window() {
  const NcclApi& api = nccl();
  const ContextGuard guard(context_);
  // Left untouched in some unsupported cases, all of which report success.
  window_ = nullptr;
  check(api.ncclCommWindowRegister(comm_, base_, bytes_, &window_, kWindowCollSymmetric),
        "ncclCommWindowRegister");
  // Before 2.29.2 an unsupported window is a handle of another kind: memory of the host.
  const bool checked = api.version >= kHostPointersSince || is_device_memory(window_);
  if (window_ && checked) return;
  fail("Unsupported", here(),
       " cannot make symmetric memory of these GPUs: it needs peer access between all of them "
       "(`nvidia-smi topo -p2p r`) on one host, and NCCL_WIN_ENABLE, NCCL_CUMEM_ENABLE not 0");
}

void Arena::resolve() {
  const NcclApi& api = nccl();
  const ContextGuard guard(context_);
  peers_.assign(static_cast<size_t>(world_), nullptr);
  if (api.ncclGetPeerDevicePointer) {
    for (int r = 0; r < world_; ++r) {
      void* pointer = nullptr;
      check(api.ncclGetPeerDevicePointer(window_, 0, r, &pointer), "ncclGetPeerDevicePointer");
      peers_[static_cast<size_t>(r)] = static_cast<unsigned char*>(pointer);
    }
  } else {
    read_window();
  }
  peers_[static_cast<size_t>(rank_)] = base_;
  for (int r = 0; r < world_; ++r) require_device_memory(r);
}

void Arena::read_window() {
  WindowHead head = {};
  check(cuda().cuMemcpyDtoHAsync(&head, device_pointer(window_), sizeof(head), stream_),
        "reading NCCL's window");
  check(cuda().cuStreamSynchronize(stream_), "reading NCCL's window");
  // Also the proof that the layout is what we think it is.
  if (head.world_rank != rank_ || head.lsa_rank != rank_ || head.stride_4g == 0) {
    fail("Unsupported", here(), " shares memory among fewer than all ", world_,
         " ranks: its window has rank ", rank_, " as ", head.world_rank, ", ", head.lsa_rank,
         " among those that share");
  }
  const uint64_t stride = uint64_t{head.stride_4g} << 32;
  for (int r = 0; r < world_; ++r)
    peers_[static_cast<size_t>(r)] = head.lsa_base + static_cast<uint64_t>(r) * stride;
}

// An address that is not mapped fails here, not in a kernel: that would end the context.
void Arena::require_device_memory(int rank) const {
  const unsigned char* first = peer(rank);
  if (first && is_device_memory(first) && is_device_memory(first + bytes_ - 1)) return;
  fail("Unsupported", "rank ", rank_, " cannot reach the memory of rank ", rank, " (", here(),
       "); all GPUs need peer access to each other: see `nvidia-smi topo -p2p r`");
}

void Arena::write_token(uint64_t nonce) {
  const ContextGuard guard(context_);
  const uint64_t token = nonce ^ static_cast<uint64_t>(rank_);
  check(cuda().cuMemcpyHtoDAsync(device_pointer(base_ + proof()), &token, sizeof(token), stream_),
        "writing a token");
  check(cuda().cuStreamSynchronize(stream_), "writing a token");
}

void Arena::check_tokens(uint64_t nonce) {
  const ContextGuard guard(context_);
  const CUdeviceptr copies = device_pointer(base_ + proof() + kProofCopies);
  for (int r = 0; r < world_; ++r) {
    // By way of this GPU: only it has access to a peer's mapping, the host has none.
    check(cuda().cuMemcpyAsync(copies + static_cast<CUdeviceptr>(r) * sizeof(uint64_t),
                               device_pointer(peer(r) + proof()), sizeof(uint64_t), stream_),
          text("rank ", rank_, " reading the memory of rank ", r).c_str());
  }
  std::vector<uint64_t> tokens(static_cast<size_t>(world_));
  check(cuda().cuMemcpyDtoHAsync(tokens.data(), copies, tokens.size() * sizeof(uint64_t), stream_),
        "reading tokens");
  check(cuda().cuStreamSynchronize(stream_), "reading the peers' memory");
  for (int r = 0; r < world_; ++r) {
    const uint64_t expected = nonce ^ static_cast<uint64_t>(r);
    if (tokens[static_cast<size_t>(r)] == expected) continue;
    fail("CommError", "rank ", rank_, " reads ", tokens[static_cast<size_t>(r)], " where rank ", r,
         " wrote ", expected, ": ", here(),
         " gave a wrong address; use another NCCL, or symmetric "
         "memory off");
  }
}

void Arena::free(void* pointer) {
  allocator_.free(static_cast<size_t>(static_cast<unsigned char*>(pointer) - base_) - user_first_);
  if (closed_ && lingers_ && !allocator_.in_use()) release();
}

void Arena::close(bool communicator_alive) {
  if (closed_) return;
  closed_ = true;
  const CudaApi& driver = cuda();
  CUcontext before = nullptr;
  driver.cuCtxGetCurrent(&before);
  if (driver.cuCtxSetCurrent(context_) != kCudaSuccess) return;  // the driver has shut down
  if (window_ && communicator_alive) nccl().ncclCommWindowDeregister(comm_, window_);
  if (stream_) driver.cuStreamDestroy(stream_);
  driver.cuCtxSetCurrent(before);
  window_ = nullptr;
  stream_ = nullptr;
  lingers_ = allocator_.in_use();  // tensors keep the memory, as torch's own do
  if (!lingers_) release();
}

void Arena::release() {
  const CudaApi& driver = cuda();
  CUcontext before = nullptr;
  driver.cuCtxGetCurrent(&before);
  if (driver.cuCtxSetCurrent(context_) != kCudaSuccess) return;
  for (const unsigned char* mapping : {plain_, for_sends_}) {
    if (!mapping) continue;
    driver.cuMemUnmap(device_pointer(mapping), bytes_);
    driver.cuMemAddressFree(device_pointer(mapping), bytes_);
  }
  if (base_) nccl().ncclMemFree(base_);
  lingers_ = false;
  driver.cuCtxSetCurrent(before);
  driver.cuDevicePrimaryCtxRelease(device_);
}

}  // namespace commlib::nccl
