// push to each peer what is its own | reduce mine in rank order; tiles through pipes, of few blocks
//
// Serves every collective whose ranks reduce a block each, or one of them: Moves says which.
#include "device/pipe_reduce.cuh"

namespace commlib {

template <bool kPlain, class T, class Op, int N>
__device__ __forceinline__ void exchange(const Pipes<N>& pipes, const PipeRooms<N, false>& rooms,
                                         const Job& job, const Moves& moves) {
  const u64 bytes = moves.take_bytes[job.rank];
  const auto from = [&](int peer, u64 offset) {
    return pipes.tile(job.in + moves.send_at[peer], moves.send_bytes[peer], offset);
  };
  const auto own = [&](u64 offset) {
    return pipes.tile(job.in + moves.send_at[job.rank], bytes, offset);
  };
  const auto to = [&](u64 offset) { return pipes.tile(job.out, bytes, offset); };
  const auto fold_all = [&](const u64(&words)[N]) { return fold<T, Op, N>(words, job.redop); };

  const auto send = [&] {
    const Cursor<N> items(pipes, [&](int peer) { return pipes.goal(kWritten, kScatter, peer); });
    Sender<kPlain, N, decltype(from), decltype(to)> sender(pipes, items, from, to);
    run_ring<kPlain, 2>(pipes, Hand<kPlain>::roomy(rooms.sent(pipes)), items.items(), sender);
  };
  const auto reduce = [&] {
    const u32 steps = static_cast<u32>(pipes.tiles(bytes).steps());
    const Ring ring = Hand<kPlain>::roomy(rooms.reduced(pipes));
    Reducer<kPlain, N, false, decltype(fold_all), decltype(own), decltype(to)> reducer(
        pipes, fold_all, own, to);
    if (threadIdx.x < 32) {
      run_ring<kPlain, 1>(pipes, ring, steps, reducer);
    } else {
      reducer.assist(ring, steps);
    }
  };
  pipes.template run<kPlain>(reduce, send, [] {});
}

template <class T, class Op, int N>
__global__ void __launch_bounds__(kPipeThreads, 1)
    lsa_pipe_exchange(const __grid_constant__ Job job, const __grid_constant__ Moves moves) {
  __shared__ PipeBoard board;
  const PipeRooms<N, false> rooms(job.tile_bytes);
  const Pipes<N> pipes(job, &board, rooms.tile_bytes, [&](Way way, Stage stage, int peer) {
    if (stage == kGather) return u64{0};
    return way == kWritten ? moves.send_bytes[peer] : moves.take_bytes[peer];
  });
  if (are_aligned<N>(job, moves)) {
    exchange<true, T, Op>(pipes, rooms, job, moves);
  } else {
    exchange<false, T, Op>(pipes, rooms, job, moves);
  }
}

}  // namespace commlib
