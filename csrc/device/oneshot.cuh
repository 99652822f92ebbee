// all_reduce in one exchange of packets: push my words to all | take everyone's | reduce in rank
// order.
//
// The tensors may be anywhere, at any alignment; in place is fine. Every rank sends its whole
// tensor to every peer: for small ones, where a message's way counts and its length does not.
#pragma once

#include "device/packet.cuh"
#include "device/reduce.cuh"

namespace commlib {

// My words and the peers', in the order of ranks.
template <class T, class Op, class P, int N>
__device__ __forceinline__ Words<P> fold_words(const Words<P>& mine,
                                               const Words<P> (&theirs)[kPeers<N>], int rank,
                                               int redop) {
  Words<P> result;
#pragma unroll
  for (int k = 0; k < P::kWords; ++k) {
    u64 w[N];
#pragma unroll
    for (int r = 0; r < N; ++r) {
      w[r] = mine.w[k];
      if (r < N - 1 && r < rank) w[r] = theirs[r].w[k];
      if (r > 0 && r > rank) w[r] = theirs[r - 1].w[k];
    }
    result.w[k] = fold<T, Op, N>(w, redop);
  }
  return result;
}

// Step k of everyone and of `own`, which comes as number i, reduced. False: the call is over.
template <class T, class Op, class P, int N>
__device__ __forceinline__ bool take_and_reduce(const Channel<P, N>& channel, int i, u32 step,
                                                const Span& own, int redop, Words<P>& result) {
  const Words<P> mine = Words<P>::load(own, step);
  Words<P> theirs[kPeers<N>];
  if (!channel.receive(i, theirs)) return false;
  mark(Phase::reduce);
  result = fold_words<T, Op, P, N>(mine, theirs, channel.rank(), redop);
  mark(Phase::copy);
  return true;
}

// The same into `out`.
template <class T, class Op, class P, int N>
__device__ __forceinline__ bool take_reduced(const Channel<P, N>& channel, int i, u32 step,
                                             const Span& own, int redop, const Span& out) {
  Words<P> result;
  if (!take_and_reduce<T, Op>(channel, i, step, own, redop, result)) return false;
  result.store(out, step);
  return true;
}

// An exchange of steps: send(k), then take(k). Where a channel has few, two are on their way at a
// time; more of them crowd the link, and what a multiprocessor reads waits behind what it sends.
template <class P, int N, class Send, class Take>
__device__ __forceinline__ void send_and_take(Channel<P, N>& channel, const Steps& steps, Send send,
                                              Take take) {
  const int lead = steps.has(4) ? 1 : 2;
  static_assert(kAhead >= 2, "the rule of channels");
  int sent = 0, taken = 0;
#pragma unroll 1
  while (steps.has(taken)) {
    if (steps.has(sent)) send(sent++);
    if (steps.has(sent) && sent < taken + lead) continue;
    if (!take(taken++)) return;
  }
  channel.close(taken);
}

template <class P, class T, class Op, int N>
__device__ __forceinline__ void all_reduce_oneshot(const Job& job) {
  Channel<P, N> channel(job);
  const Span in(job.in, job.bytes), out(job.out, job.bytes);
  const Steps steps = channel.steps(job.bytes);
  Words<P> next = Words<P>::load(in, steps[0]);  // on its way before it is needed
  const auto send = [&](int k) {
    channel.send_all(k, next);
    next = Words<P>::load(in, steps[k + 1]);
  };
  const auto take = [&](int k) {
    return take_reduced<T, Op>(channel, k, steps[k], in, job.redop, out);
  };
  send_and_take(channel, steps, send, take);
}

}  // namespace commlib
