// Moves of any pattern in packets: push to each peer what is its own | take, or reduce, what is
// mine.
//
// Blocks may differ in length and be empty; a peer that gets nothing still gets one packet for each
// epoch, which is what lets slots be used again (device/packet.cuh).
#pragma once

#include "device/oneshot.cuh"

namespace commlib {

template <class P>
__device__ __forceinline__ u64 exchange_steps(const Moves& moves) {
  return steps_of<P>(moves.longest > 0 ? moves.longest : 1);
}

// Pushes the k-th step of an epoch to those who have something in it, the first one to all.
template <class P, int N>
__device__ __forceinline__ void push_step(const Channel<P, N>& channel, const Job& job,
                                          const Moves& moves, int k, u64 step) {
#pragma unroll
  for (int i = 1; i < N; ++i) {
    const int peer = channel.after(i);
    if (k > 0 && step * 8 * P::kStepWords >= moves.send_bytes[peer]) continue;
    const Span block(job.in + moves.send_at[peer], moves.send_bytes[peer]);
    channel.send(peer, 0, k, Words<P>::load(block, step));
  }
}

// My block of everyone's, reduced; every rank's block for this one is as long as its own.
template <class P, class T, class Op, int N>
__device__ __forceinline__ void exchange_and_reduce(const Job& job, const Moves& moves) {
  Channel<P, N> channel(job);
  const u64 steps = exchange_steps<P>(moves), stride = channel.count();
  const u64 bytes = moves.take_bytes[job.rank];
  const Span own(job.in + moves.send_at[job.rank], bytes), out(job.out, bytes);
  for (u64 first = channel.id(); first < steps; first += stride * kSteps) {
#pragma unroll 1
    for (int k = 0; k < kSteps && first + k * stride < steps; ++k)
      push_step(channel, job, moves, k, first + k * stride);
#pragma unroll 1
    for (int k = 0; k < kSteps && first + k * stride < steps; ++k) {
      const u64 step = first + k * stride;
      const bool comes = k == 0 || step * 8 * P::kStepWords < bytes;
      if (!comes) continue;
      Words<P> all[N];
      const Words<P> mine = Words<P>::load(own, step);
#pragma unroll
      for (int r = 0; r < N; ++r) all[r] = mine;
      if (!channel.receive(0, k, all)) return;
      fold_words<T, Op>(all, job.redop).store(out, step);
    }
    channel.advance(1);
  }
  channel.close();
}

template <class P, int N>
__device__ __forceinline__ void exchange(const Job& job, const Moves& moves) {
  Channel<P, N> channel(job);
  constexpr u64 kUnit = 8 * P::kStepWords;
  const u64 steps = exchange_steps<P>(moves), stride = channel.count();
  const Span own_in(job.in + moves.send_at[job.rank], moves.send_bytes[job.rank]);
  const Span own_out(job.out + moves.take_at[job.rank], moves.take_bytes[job.rank]);
  for (u64 first = channel.id(); first < steps; first += stride * kSteps) {
#pragma unroll 1
    for (int k = 0; k < kSteps && first + k * stride < steps; ++k) {
      const u64 step = first + k * stride;
      push_step(channel, job, moves, k, step);
      Words<P>::load(own_in, step).store(own_out, step);
    }
#pragma unroll 1
    for (int k = 0; k < kSteps && first + k * stride < steps; ++k) {
      const u64 step = first + k * stride;
      Words<P> all[N];
      const auto comes = [&](int r) { return k == 0 || step * kUnit < moves.take_bytes[r]; };
      if (!channel.receive(0, k, all, comes)) return;
#pragma unroll
      for (int r = 0; r < N; ++r) {
        if (r == job.rank || !comes(r)) continue;
        all[r].store(Span(job.out + moves.take_at[r], moves.take_bytes[r]), step);
      }
    }
    channel.advance(1);
  }
  channel.close();
}

}  // namespace commlib
