// push to each peer what is its own | take what is mine; tiles through pipes
#pragma once

#include "device/pipe_ring.cuh"

namespace commlib {

// One tile for all: it need not be loaded for each.
template <int N>
__device__ __forceinline__ bool is_one_for_all(const Moves& moves) {
  u64 at = ~0ull, bytes = 0;
  bool one = true;
#pragma unroll
  for (int r = 0; r < N; ++r) {
    if (moves.send_bytes[r] == 0) continue;
    if (at == ~0ull) at = moves.send_at[r], bytes = moves.send_bytes[r];
    one = one && moves.send_at[r] == at && moves.send_bytes[r] == bytes;
  }
  return one;
}

template <bool kPlain, int N>
__device__ __forceinline__ void exchange(const Pipes<N>& pipes, const Job& job,
                                         const Moves& moves) {
  constexpr u32 kSent = 7, kTakenHere = kPipeShared - kSent;
  const u64 own_bytes = moves.send_bytes[job.rank];
  const u8* own_in = job.in + moves.send_at[job.rank];
  u8* own_out = job.out + moves.take_at[job.rank];
  const u32 own_steps = own_in == own_out ? 0 : static_cast<u32>(pipes.tiles(own_bytes).steps());
  const auto own = [&](u64 offset) { return pipes.tile(own_out, own_bytes, offset); };
  const auto from = [&](int peer, u64 offset) {
    return pipes.tile(job.in + moves.send_at[peer], moves.send_bytes[peer], offset);
  };
  const auto to = [&](int peer, u64 offset) {
    return pipes.tile(job.out + moves.take_at[peer], moves.take_bytes[peer], offset);
  };

  const auto send = [&] {
    const Ring ring = Hand<kPlain>::roomy(pipes.ring(0, kSent, kSlotBytes, 0));
    if (is_one_for_all<N>(moves)) {
      u32 steps = own_steps;
      int some = job.rank;
#pragma unroll
      for (int k = 0; k < N - 1; ++k) {
        const u32 expected = pipes.goal(kWritten, kScatter, pipes.peer(k));
        if (expected > 0) steps = expected, some = pipes.peer(k);
      }
      const auto one = [&](u64 offset) { return from(some, offset); };
      Spreader<kPlain, N, decltype(one), decltype(own)> spreader(pipes, own_steps > 0, one, own);
      run_ring<kPlain, 2>(pipes, ring, steps, spreader);
    } else {
      const Cursor<N> items(pipes, [&](int peer) {
        return peer == job.rank ? own_steps : pipes.goal(kWritten, kScatter, peer);
      });
      Sender<kPlain, N, decltype(from), decltype(own)> sender(pipes, items, from, own);
      run_ring<kPlain, 2>(pipes, ring, items.items(), sender);
    }
  };
  const auto take = [&] {
    if (threadIdx.x >= 32) return;
    // In place, what lies where a tile comes to has to be sent first.
    const bool waits = job.in == job.out && !is_one_for_all<N>(moves);
    const Cursor<N> items(pipes, [&](int peer) { return pipes.goal(kTaken, kScatter, peer); });
    Taker<kPlain, N, decltype(to)> taker(pipes, kScatter, waits, items, to);
    run_ring<kPlain, 1>(pipes, pipes.ring(1, kTakenHere, kSlotBytes, kSent * kSlotBytes),
                        items.items(), taker);
  };
  pipes.template run<kPlain>(take, send, [] {});
}

template <int N>
__device__ __forceinline__ void exchange(const Pipes<N>& pipes, const Job& job,
                                         const Moves& moves) {
  if (are_aligned<N>(job, moves)) {
    exchange<true>(pipes, job, moves);
  } else {
    exchange<false>(pipes, job, moves);
  }
}

}  // namespace commlib
