// push to each peer what is its own | take what is mine; tiles through pipes, of few blocks
//
// Serves every collective that only moves: Moves says what goes where (nccl/moves.h).
#include "device/pipe_exchange.cuh"

namespace commlib {

template <int N>
__global__ void __launch_bounds__(kPipeThreads, 1)
    lsa_pipe_exchange(const __grid_constant__ Job job, const __grid_constant__ Moves moves) {
  __shared__ PipeBoard board;
  const auto bytes = [&](Way way, Stage stage, int peer) {
    if (stage == kGather) return u64{0};
    return way == kWritten ? moves.send_bytes[peer] : moves.take_bytes[peer];
  };
  const Pipes<N> pipes(job, &board, job.tile_bytes, bytes);
  exchange(pipes, job, moves);
}

}  // namespace commlib
