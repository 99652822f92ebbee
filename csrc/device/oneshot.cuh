// all_reduce in one exchange of packets: push my words to all | take everyone's | reduce in rank
// order.
//
// The tensors may be anywhere, at any alignment; in place is fine. Every rank sends its whole
// tensor to every peer: for small ones, where a message's way counts and its length does not.
#pragma once

#include "device/channel.cuh"
#include "device/reduce.cuh"

namespace commlib {

// My words and the peers', in the order of ranks.
template <class T, class Op, class P, int N>
__device__ __forceinline__ Words<P> fold_words(const Words<P>& mine,
                                               const Words<P> (&received)[kPeers<N>], int rank,
                                               int redop) {
  Words<P> result;
#pragma unroll
  for (int k = 0; k < P::kWords; ++k) {
    u64 w[N];
#pragma unroll
    for (int r = 0; r < N; ++r) {
      w[r] = mine.w[k];
      if (r < N - 1 && r < rank) w[r] = received[r].w[k];
      if (r > 0 && r > rank) w[r] = received[r - 1].w[k];
    }
    result.w[k] = fold<T, Op, N>(w, redop);
  }
  return result;
}

// Steps that a channel sends, and looks for, together: the last round may have fewer.
template <int kSteps, class P>
using Round = Words<P>[kSteps];

template <int kSteps, class P>
__device__ __forceinline__ void load_round(const TensorOf<P>& from, const Steps& steps, int k,
                                           Round<kSteps, P>& words) {
#pragma unroll
  for (int c = 0; c < kSteps; ++c) words[c] = Words<P>::load(from, steps[k + c]);
}
template <int kSteps, class P>
__device__ __forceinline__ void store_round(const Round<kSteps, P>& words, const TensorOf<P>& to,
                                            const Steps& steps, int k) {
#pragma unroll
  for (int c = 0; c < kSteps; ++c)
    if (steps.has(k + c)) words[c].store(to, steps[k + c]);
}
// As the numbers from i on.
template <int kSteps, class P, int N>
__device__ __forceinline__ void send_round(const Channel<P, N>& channel, int i, const Steps& steps,
                                           int k, const Round<kSteps, P>& words) {
#pragma unroll
  for (int c = 0; c < kSteps; ++c)
    if (steps.has(k + c)) channel.send_all(i + c, words[c]);
}
// Those of every peer. False: the call is over.
template <int kSteps, class P, int N>
__device__ __forceinline__ bool take_round(const Channel<P, N>& channel, int i, const Steps& steps,
                                           int k, Words<P> (&words)[kSteps][kPeers<N>]) {
  return channel.receive(i, words, [&](int c, int) { return steps.has(k + c); });
}
// Those of everyone and of `own`, reduced.
template <int kSteps, class T, class Op, class P, int N>
__device__ __forceinline__ bool take_and_reduce(const Channel<P, N>& channel, int i, int k,
                                                const Steps& steps, const TensorOf<P>& own,
                                                int redop, Round<kSteps, P>& results) {
  Round<kSteps, P> mine;
  load_round<kSteps, P>(own, steps, k, mine);
  Words<P> received[kSteps][kPeers<N>];
  if (!take_round(channel, i, steps, k, received)) return false;
  mark(Phase::reduce);
#pragma unroll
  for (int c = 0; c < kSteps; ++c)
    results[c] = fold_words<T, Op, P, N>(mine[c], received[c], channel.rank(), redop);
  mark(Phase::copy);
  return true;
}
// The same into `out`.
template <int kSteps, class T, class Op, class P, int N>
__device__ __forceinline__ bool take_reduced(const Channel<P, N>& channel, int k,
                                             const Steps& steps, const TensorOf<P>& own, int redop,
                                             const TensorOf<P>& out) {
  Round<kSteps, P> results;
  if (!take_and_reduce<kSteps, T, Op>(channel, k, k, steps, own, redop, results)) return false;
  store_round<kSteps, P>(results, out, steps, k);
  channel.let_next();
  return true;
}

// Rounds have two steps if there are more than one, where packets are whole and registers allow.
template <class P, int N>
__device__ __forceinline__ bool in_twos(const Steps& steps) {
  return !P::kFlags && N == 2 && steps.has(1);
}

// An exchange in rounds: send(k), then take(k), for the steps from k on. Where a channel has few
// steps, two rounds are on their way at a time; more of them crowd the link, and what a
// multiprocessor reads waits behind what it sends.
template <int kSteps, class P, int N, class Send, class Take>
__device__ __forceinline__ void send_and_take(Channel<P, N>& channel, const Steps& steps, Send send,
                                              Take take) {
  static_assert(kAhead >= 2 * kSteps, "the rule of channels");
  const int lead = steps.has(4) ? kSteps : 2 * kSteps;
  int sent = 0, taken = 0;
#pragma unroll 1
  for (; steps.has(taken); taken += steps.template in_round<kSteps>(taken)) {
#pragma unroll 1
    for (; sent < taken + lead && steps.has(sent); sent += kSteps) send(sent);
    if (!take(taken)) return;
  }
  channel.close(taken);
}

template <int kSteps, class T, class Op, class P, int N>
__device__ __forceinline__ void all_reduce_in(Channel<P, N>& channel, const TensorOf<P>& in,
                                              const TensorOf<P>& out, const Steps& steps,
                                              int redop) {
  channel.begin();
  Round<kSteps, P> next;  // on its way before it is needed
  load_round<kSteps, P>(in, steps, 0, next);
  channel.use_number();
  const auto send = [&](int k) {
    send_round<kSteps>(channel, k, steps, k, next);
    load_round<kSteps, P>(in, steps, k + kSteps, next);
  };
  const auto take = [&](int k) {
    return take_reduced<kSteps, T, Op>(channel, k, steps, in, redop, out);
  };
  send_and_take<kSteps>(channel, steps, send, take);
}
template <class P, class T, class Op, int N>
__device__ __forceinline__ void all_reduce_oneshot(const Job& job) {
  const TensorOf<P> in(job.in, job.bytes), out(job.out, job.bytes);
  Channel<P, N> channel(job);
  const Steps steps = channel.steps(job.bytes);
  if (in_twos<P, N>(steps))
    all_reduce_in<2, T, Op>(channel, in, out, steps, job.redop);
  else
    all_reduce_in<1, T, Op>(channel, in, out, steps, job.redop);
}

}  // namespace commlib
