// A rank's symmetric memory: ncclMemAlloc'ed, registered as one NCCL window, and mapped by all
// peers.
//
//   fixed (flags, packets, staging; zero at the start) | user (tensors) | proof (one page)
//
// Every rank has the same layout, so an offset means the same everywhere. Setting up takes five
// steps that all ranks take together; a rank whose step failed must tell the others before the next
// one, which would wait for it:
//
//   acquire | register_window | resolve + write_token | barrier | check_tokens
//
// Requires: one host, peer access between all GPUs, NCCL 2.28.3 or newer, a blocking communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "commlib/allocator.h"
#include "cuda/api.h"
#include "nccl/nccl_api.h"

namespace commlib::nccl {

class Arena {
 public:
  Arena(ncclComm_t comm, int rank, int world, size_t fixed_bytes, size_t user_bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // An arena that nobody closed stays with the driver: at interpreter exit CUDA may be gone.
  ~Arena() = default;

  void acquire();
  // Waits for all ranks, and NCCL has no deadline of its own: call it on a thread that may be left
  // behind. ncclCommAbort from another thread gets it out.
  void register_window();
  void resolve();
  void write_token(uint64_t nonce);
  // After every rank has written: each must read what its peers wrote, through their pointers.
  void check_tokens(uint64_t nonce);

  void* allocate(size_t bytes) { return base_ + user_first_ + allocator_.allocate(bytes); }
  // Also after close(): a tensor may outlive its communicator.
  void free(void* pointer);
  // Bytes of the arena as NCCL's calls on plain tensors take them: at addresses of which NCCL
  // knows no window. On a window it may take a symmetric kernel, which writes to the wrong place
  // where ranks' tensors lie at different ones.
  template <class Byte>
  Byte* as_plain(Byte* pointer) const {
    return moved(pointer, base_, plain_);
  }
  // Those bytes as its sends and receives take them. Graphs make NCCL register its
  // buffers, and before 2.29.2 it writes from address 0 on where a ring comes to memory that was
  // registered for a send (NVIDIA/nccl#1859).
  template <class Byte>
  Byte* for_sends(Byte* plain) const {
    return moved(plain, plain_, for_sends_);
  }
  // The offset of [pointer, pointer + bytes) from base() if that lies in the user part, else -1.
  int64_t offset_of(const void* pointer, size_t bytes) const {
    const auto offset = reinterpret_cast<intptr_t>(pointer) - reinterpret_cast<intptr_t>(base_);
    const auto first = static_cast<int64_t>(user_first_);
    const size_t room = allocator_.bytes();
    const bool inside = !closed_ && offset >= first && bytes <= room &&
                        static_cast<size_t>(offset - first) <= room - bytes;
    return inside ? offset : -1;
  }

  unsigned char* base() const { return base_; }
  // Rank `rank`'s base() as this GPU reaches it; its own for itself.
  unsigned char* peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  const std::vector<unsigned char*>& peers() const { return peers_; }
  size_t bytes() const { return bytes_; }
  ncclWindow_t window() const { return window_; }
  CUcontext context() const { return context_; }
  CUdevice device() const { return device_; }

  // Once all ranks are past their last use of it, before the communicator goes. After an abort the
  // window went with the communicator. Memory goes with the last tensor in it. Idempotent; reports
  // nothing, there is nobody to act on it.
  void close(bool communicator_alive);
  // In a forked child: everything is the parent's.
  void abandon() { closed_ = true; }

 private:
  unsigned char* map_again(CUallocationHandle handle) const;
  template <class Byte>
  Byte* moved(Byte* pointer, const unsigned char* from, unsigned char* to) const {
    const auto offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(from);
    return offset < bytes_ ? to + offset : pointer;
  }
  void read_window();
  void release();
  void require_device_memory(int rank) const;
  size_t proof() const { return bytes_ - kProofBytes; }

  static constexpr size_t kProofBytes = 4096;
  static constexpr size_t kProofCopies = 1024;  // where peers' tokens are put, in the proof page

  ncclComm_t comm_;
  int rank_;
  int world_;
  size_t user_first_;
  size_t bytes_;
  Allocator allocator_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  unsigned char* base_ = nullptr;
  unsigned char* plain_ = nullptr;  // the same memory once more
  unsigned char* for_sends_ = nullptr;
  ncclWindow_t window_ = nullptr;
  std::vector<unsigned char*> peers_;
  bool closed_ = false;
  bool lingers_ = false;  // closed, but tensors still hold the memory
};

}  // namespace commlib::nccl
