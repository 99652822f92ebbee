// Moves of any pattern in packets: push to each peer what is its own | take, or reduce, what is
// mine.
//
// Blocks may differ in length and be empty; a peer that gets nothing still gets one packet for each
// round of kAhead steps: who took that knows that all before it were read (device/packet.cuh).
#pragma once

#include "device/oneshot.cuh"

namespace commlib {

// Every channel's steps up to the longest block's end; at least one, in which all are heard.
template <class P, int N>
__device__ __forceinline__ Steps exchange_steps(const Channel<P, N>& channel, const Moves& moves) {
  return channel.steps(moves.longest > 0 ? moves.longest : 1);
}

// Pushes step k to those who have something in it, the first of a round to all.
template <class P, int N>
__device__ __forceinline__ void push_step(const Channel<P, N>& channel, const Job& job,
                                          const Moves& moves, int k, u32 step) {
  mark(Phase::publish);
#pragma unroll
  for (int i = 1; i < N; ++i) {
    const int peer = channel.after(i);
    if (k % kAhead > 0 && u64{step} * 8 * P::kStepWords >= moves.send_bytes[peer]) continue;
    const Span block(job.in + moves.send_at[peer], moves.send_bytes[peer]);
    channel.send(i, k, Words<P>::load(block, step));
  }
}

// Steps go in rounds: push(k) for all of a round, then take(k) for all of it.
template <class P, int N, class Push, class Take>
__device__ __forceinline__ void push_and_take(Channel<P, N>& channel, const Steps& steps, Push push,
                                              Take take) {
  int round = 0;
#pragma unroll 1
  for (; steps.has(round); round += kAhead) {
#pragma unroll 1
    for (int k = round; k < round + kAhead && steps.has(k); ++k) push(k);
#pragma unroll 1
    for (int k = round; k < round + kAhead && steps.has(k); ++k)
      if (!take(k)) return;
  }
  channel.close(round);
}

// My block of everyone's, reduced; every rank's block for this one is as long as its own.
template <class P, class T, class Op, int N>
__device__ __forceinline__ void exchange_and_reduce(const Job& job, const Moves& moves) {
  Channel<P, N> channel(job);
  const u64 bytes = moves.take_bytes[job.rank];
  const Span own(job.in + moves.send_at[job.rank], bytes), out(job.out, bytes);
  const Steps steps = exchange_steps(channel, moves);
  channel.begin();
  const auto push = [&](int k) { push_step(channel, job, moves, k, steps[k]); };
  const auto take = [&](int k) {
    const bool comes = k % kAhead == 0 || u64{steps[k]} * 8 * P::kStepWords < bytes;
    if (!comes) return true;
    const auto mine = Words<P>::load(own, steps[k]);
    Words<P> received[1][kPeers<N>];
    if (!channel.receive(k, received)) return false;
    fold_words<T, Op, P, N>(mine, received[0], job.rank, job.redop).store(out, steps[k]);
    channel.let_next();
    return true;
  };
  push_and_take(channel, steps, push, take);
}

template <class P, int N>
__device__ __forceinline__ void exchange(const Job& job, const Moves& moves) {
  Channel<P, N> channel(job);
  constexpr u64 kUnit = 8 * P::kStepWords;
  const Span own_in(job.in + moves.send_at[job.rank], moves.send_bytes[job.rank]);
  const Span own_out(job.out + moves.take_at[job.rank], moves.take_bytes[job.rank]);
  const Steps steps = exchange_steps(channel, moves);
  channel.begin();
  const auto push = [&](int k) {
    push_step(channel, job, moves, k, steps[k]);
    Words<P>::load(own_in, steps[k]).store(own_out, steps[k]);
  };
  const auto take = [&](int k) {
    Words<P> words[1][kPeers<N>];
    const auto comes = [&](int, int p) {
      return k % kAhead == 0 || steps[k] * kUnit < moves.take_bytes[channel.peer(p)];
    };
    if (!channel.receive(k, words, comes)) return false;
#pragma unroll
    for (int p = 0; p < N - 1; ++p) {
      const int r = channel.peer(p);
      if (comes(0, p))
        words[0][p].store(Span(job.out + moves.take_at[r], moves.take_bytes[r]), steps[k]);
    }
    channel.let_next();
    return true;
  };
  push_and_take(channel, steps, push, take);
}

}  // namespace commlib
