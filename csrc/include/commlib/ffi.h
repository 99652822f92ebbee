// For algorithms that are functions of tvm-ffi's, in C++ and CUDA: what they get, and how ranks
// signal and wait. Needs no other header of commlib's.
//
//   void my_all_reduce(TensorView out, TensorView x, TensorView peers, TensorView signals,
//                      int64_t rank, int64_t size, TensorView calls, TensorView deadline);
//
//   out, x    of 1 dimension; they may be the same memory
//   peers     addresses, one for each rank: the room of rank r, `room_bytes` of the row, as this
//             rank reaches it
//   signals   addresses, one for each rank: its kSignals words, which begin at 0
//   calls     kCalls words of this rank, which begin at 0 and which the function alone counts up:
//             what it knows of its calls so far, on a GPU also where CUDA graphs are replayed. A
//             block of a kernel takes the word of its number
//   deadline  address of the Deadline: deadline.data_ptr()
//
// All words have 64 bits, and tensors lie on the communicator's device. A function must
//
//   - wait by wait(), and on false return at once: the call is over, its result is lost
//   - leave room and signals such that the next call may begin as soon as this rank is done: with
//     two halves of the room that calls take in turns, a peer that still reads keeps its half
//   - on a GPU put its work on tvm-ffi's stream, in blocks that are all on the GPU at a time
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define COMMLIB_FFI_BOTH __device__ __forceinline__
#else
#define COMMLIB_FFI_BOTH inline
#endif

namespace commlib::ffi {

constexpr int64_t kSignals = 4096, kCalls = 1024;

struct Deadline {
  uint64_t ended;       // not 0: the communicator is over. On GPUs; on CPUs wait() knows it
  uint64_t timeout_ns;  // of a wait
  uint64_t gave_up;     // on GPUs: 1 + the peer for which a wait was in vain
  // On CPUs, where waits sleep, see that a peer has died, and answer Ctrl-C.
  int (*await)(Deadline*, const uint64_t* word, uint64_t value, int peer);
  void (*ring)(Deadline*);
};

// Sets a word of a peer's: who waits for it sees everything that this thread has written, and on a
// GPU what its block has, after __syncthreads(). Words only go up.
COMMLIB_FFI_BOTH void signal(uint64_t* word, uint64_t value, Deadline* deadline) {
#ifdef __CUDACC__
  asm volatile("fence.acq_rel.sys;\nst.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value)
               : "memory");
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  deadline->ring(deadline);
#endif
}

// Returns true once a word of this rank's, which `peer` sets, has reached `value`; false where the
// communicator is over, or ends here since the peer did not come in time.
COMMLIB_FFI_BOTH bool wait(const uint64_t* word, uint64_t value, int peer, Deadline* deadline) {
#ifdef __CUDACC__
  constexpr unsigned kPollsBetween = 64;
  constexpr uint64_t kAskNs = 1000000;  // the deadline lies in the host's memory
  volatile Deadline* host = deadline;
  uint64_t since = 0, asked = 0;
  for (unsigned polls = 1;; ++polls) {
    uint64_t seen, now;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
    if (seen >= value) return true;
    if (polls % kPollsBetween != 0) continue;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (since == 0) since = now;
    if (now - asked < kAskNs) continue;
    asked = now;
    if (host->ended != 0 || host->gave_up != 0) return false;
    if (now - since < host->timeout_ns) continue;
    host->gave_up = 1 + static_cast<uint64_t>(peer);
    return false;
  }
#else
  if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= value) return true;
  return deadline->await(deadline, word, value, peer) != 0;
#endif
}

}  // namespace commlib::ffi
