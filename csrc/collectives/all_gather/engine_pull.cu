// say that my input may be read, and where it lies | wait until all have | (copy engines read:
// csrc/nccl/pull.cc) | say that I have read | wait until all have
//
// Launched twice in a call, a warp each time: before the copies and behind them. A lane waits for a
// peer. Every rank hears every other one in both turns, so nobody is a turn ahead, and what was
// said is read before it is said anew. A rank only ever writes its own tensors: where ranks
// disagree, or one is gone, the engines read what does not matter any more.
//
// Requirements: the input in the arena, at the same place on every rank.
#include "device/wait.cuh"

namespace commlib {

// What `peer` says in this turn; returns when it has, or when the call is over.
__device__ __forceinline__ void await_said(const Job& job, const Reads& reads, int peer, u64 flag,
                                           const Said* said) {
  Patience patience;
  while (true) {
    const Pair now = ld_relaxed_sys(said);
    if (now.a == flag) {
      if (now.b == reads.in_at[peer]) return;
      announce(job);
      return end_call(job, Ending::misplaced, peer);
    }
    if (patience.runs_out() && patience.gives_up(job, peer, now.a, flag)) return;
  }
}

template <int N>
__global__ void __launch_bounds__(32, 1)
    engine_pull(const __grid_constant__ Job job, const __grid_constant__ Reads reads) {
  begin_marked();
  Control* own = control_of(job, job.rank);
  const int peer = static_cast<int>(threadIdx.x), turn = static_cast<int>(reads.turn);
  const u64 number = own->engine_number + 1;
  const u64 flag = number << kSignatureBits | job.signature;
  if (peer < N && peer != job.rank) {
    fence_sys();
    st_relaxed_sys(&control_of(job, peer)->said[turn][job.rank], Pair{flag, reads.in_at[job.rank]});
    mark(Phase::wait);
    await_said(job, reads, peer, flag, &own->said[turn][peer]);
    fence_sys();
  }
  __syncwarp();
  if (threadIdx.x == 0 && reads.turn == Turn::read) {
    own->engine_number = number;
    count_call(job);
  }
  mark(Phase::over);
}

}  // namespace commlib
