// push part p to rank p | reduce my part in rank order and push it to all | take theirs; tiles
// through pipes, of few blocks
//
// job.bytes: of the tensor.
#include "device/pipe_reduce.cuh"

namespace commlib {

// The tensor in parts, one for each rank to reduce.
template <int N>
struct Parts {
  u64 all, bytes;

  __device__ explicit Parts(u64 all) : all(all), bytes(((all + N - 1) / N + 15) / 16 * 16) {}
  __device__ u64 of(int rank) const {
    const u64 at = rank * bytes, left = all > at ? all - at : 0;
    return left < bytes ? left : bytes;
  }
};

template <bool kPlain, class T, class Op, int N>
__device__ __forceinline__ void twoshot(const Pipes<N>& pipes, const PipeRooms<N, true>& rooms,
                                        const Job& job, const Parts<N>& parts) {
  const auto from = [&](int peer, u64 offset) {
    return pipes.tile(job.in + peer * parts.bytes, parts.of(peer), offset);
  };
  const auto place = [&](int peer, u64 offset) {
    return pipes.tile(job.out + peer * parts.bytes, parts.of(peer), offset);
  };
  const auto own = [&](u64 offset) { return from(job.rank, offset); };
  const auto to = [&](u64 offset) { return place(job.rank, offset); };
  const auto fold_all = [&](const u64(&words)[N]) { return fold<T, Op, N>(words, job.redop); };

  const auto send = [&] {
    const Cursor<N> items(pipes, [&](int peer) { return pipes.goal(kWritten, kScatter, peer); });
    Sender<kPlain, N, decltype(from), decltype(to)> sender(pipes, items, from, to);
    run_ring<kPlain, 2>(pipes, Hand<kPlain>::roomy(rooms.sent(pipes)), items.items(), sender);
  };
  const auto gather = [&] {
    const Cursor<N> items(pipes, [&](int peer) { return pipes.goal(kTaken, kGather, peer); });
    Taker<kPlain, N, decltype(place)> taker(pipes, kGather, job.in == job.out, items, place);
    run_ring<kPlain, 1>(pipes, rooms.gathered(pipes), items.items(), taker);
  };
  const auto reduce = [&] {
    const u32 steps = static_cast<u32>(pipes.tiles(parts.of(job.rank)).steps());
    const Ring ring = Hand<kPlain>::roomy(rooms.reduced(pipes));
    Reducer<kPlain, N, true, decltype(fold_all), decltype(own), decltype(to)> reducer(
        pipes, fold_all, own, to);
    if (threadIdx.x < 32) {
      run_ring<kPlain, 1>(pipes, ring, steps, reducer);
    } else {
      reducer.assist(ring, steps);
    }
  };
  pipes.template run<kPlain>(reduce, send, gather);
}

template <class T, class Op, int N>
__global__ void __launch_bounds__(kPipeThreads, 1)
    lsa_pipe_twoshot(const __grid_constant__ Job job) {
  __shared__ PipeBoard board;
  const PipeRooms<N, true> rooms(job.tile_bytes);
  const Parts<N> parts(job.bytes);
  const Pipes<N> pipes(job, &board, rooms.tile_bytes, [&](Way way, Stage stage, int peer) {
    return parts.of((way == kWritten) == (stage == kScatter) ? peer : job.rank);
  });
  if (are_aligned(job, 0)) {
    twoshot<true, T, Op>(pipes, rooms, job, parts);
  } else {
    twoshot<false, T, Op>(pipes, rooms, job, parts);
  }
}

}  // namespace commlib
