// all_reduce in one exchange of packets: push my words to all | take everyone's | reduce in rank
// order.
//
// The tensors may be anywhere, at any alignment; in place is fine. Every rank sends its whole
// tensor to every peer: for small ones, where a message's way counts and its length does not.
#pragma once

#include "device/packet.cuh"
#include "device/reduce.cuh"

namespace commlib {

template <class T, class Op, class P, int N>
__device__ __forceinline__ Words<P> fold_words(const Words<P> (&all)[N], int redop) {
  Words<P> result;
#pragma unroll
  for (int k = 0; k < P::kWords; ++k) {
    u64 w[N];
#pragma unroll
    for (int r = 0; r < N; ++r) w[r] = all[r].w[k];
    result.w[k] = fold<T, Op, N>(w, redop);
  }
  return result;
}

template <class P, class T, class Op, int N>
__device__ __forceinline__ void all_reduce_oneshot(const Job& job) {
  Channel<P, N> channel(job);
  const Span in(job.in, job.bytes), out(job.out, job.bytes);
  const u64 steps = steps_of<P>(job.bytes), stride = channel.count();
  for (u64 first = channel.id(); first < steps; first += stride * kSteps) {
    Words<P> mine[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const u64 step = first + k * stride;
      if (step < steps) mine[k] = Words<P>::load(in, step);
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      if (first + k * stride < steps) channel.send_all(0, k, mine[k]);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const u64 step = first + k * stride;
      if (step >= steps) break;
      Words<P> all[N];
#pragma unroll
      for (int r = 0; r < N; ++r) all[r] = mine[k];
      if (!channel.receive(0, k, all)) return;
      fold_words<T, Op>(all, job.redop).store(out, step);
    }
    channel.advance(1);
  }
  channel.close();
}

}  // namespace commlib
