// say that my input may be read, and where it lies | wait until all have | (copy engines read:
// csrc/nccl/pull.cc) | say that I have read | wait until all have
//
// Launched twice in a call, a warp each time: before the copies and behind them. A lane waits for a
// peer. Every rank hears every other one in both turns, so nobody is a turn ahead, and what was
// posted is read before it is posted again. A rank only ever writes its own tensors: where ranks
// disagree, or one is gone, the engines read what does not matter any more.
//
// Requirements: the input in the arena, at the same place on every rank.
#include "device/wait.cuh"

namespace commlib {

// The number of this call; only its last launch writes it anew.
__device__ __forceinline__ u64 number_of(const Job& job) {
  return ld_relaxed_sys(&control_of(job, job.rank)->engine_number) + 1;
}

// What `peer` says in this turn; returns when it has, or when the call is over.
__device__ __forceinline__ void await_notice(const Job& job, const Reads& reads, int peer,
                                             u64 flag) {
  Patience patience;
  while (true) {
    const Pair now =
        ld_relaxed_sys(&control_of(job, job.rank)->notices[static_cast<int>(reads.turn)][peer]);
    if (now.a == flag) {
      if (now.b == reads.in_at[peer]) return;
      announce(job);
      return end_call(job, Ending::misplaced, peer);
    }
    if (patience.runs_out() && patience.gives_up(job, peer, now.a, flag)) return;
  }
}

// So few registers that a warp finds room next to a block of cuBLAS's products on Hopper.
#if __CUDA_ARCH__ >= 900
#define COMMLIB_BESIDE_PRODUCTS __maxnreg__(32)
#else
#define COMMLIB_BESIDE_PRODUCTS __launch_bounds__(32)
#endif

template <int N>
__global__ void COMMLIB_BESIDE_PRODUCTS engine_pull(const __grid_constant__ Job job,
                                                    const __grid_constant__ Reads reads) {
  begin_marked();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < N && peer != job.rank) {
    const u64 flag = number_of(job) << kSignatureBits | job.signature;
    fence_sys();
    st_relaxed_sys(&control_of(job, peer)->notices[static_cast<int>(reads.turn)][job.rank],
                   Pair{flag, reads.in_at[job.rank]});
    mark(Phase::wait);
    await_notice(job, reads, peer, flag);
    fence_sys();
  }
  __syncwarp();
  if (threadIdx.x == 0 && reads.turn == Turn::read) {
    control_of(job, job.rank)->engine_number = number_of(job);
    count_call(job, control_of(job, job.rank));
  }
  mark(Phase::over);
}

}  // namespace commlib
