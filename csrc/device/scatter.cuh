// Phases of packets that give each rank its own part of a tensor, and that bring parts together.
#pragma once

#include "device/oneshot.cuh"

namespace commlib {

// Sends part p of `in` to rank p, for the steps of one epoch. Part p begins at p * part_bytes.
template <class P, int N>
__device__ __forceinline__ void scatter(const Channel<P, N>& channel, const Span& in,
                                        u64 part_bytes, u64 first, u64 steps) {
#pragma unroll 1
  for (int k = 0; k < kSteps; ++k) {
    const u64 step = first + k * channel.count();
    if (step >= steps) break;
    constexpr int kGroup = N < 4 ? N : 4;  // peers whose words are loaded at once
#pragma unroll 1
    for (int group = 1; group < N; group += kGroup) {
      Words<P> words[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup && group + i < N; ++i) {
        const u64 begin = channel.after(group + i) * part_bytes;
        words[i] = Words<P>::load(in.part(begin, part_bytes), step);
      }
#pragma unroll
      for (int i = 0; i < kGroup && group + i < N; ++i)
        channel.send(channel.after(group + i), 0, k, words[i]);
    }
  }
}

// push part p to rank p | reduce my part in rank order | push it to all | take theirs.
template <class P, class T, class Op, int N>
__device__ __forceinline__ void all_reduce_twoshot(const Job& job) {
  Channel<P, N> channel(job);
  const u64 part_bytes = ((job.bytes + N - 1) / N + 15) / 16 * 16;
  const Span in(job.in, job.bytes), out(job.out, job.bytes);
  const Span my_in = in.part(job.rank * part_bytes, part_bytes);
  const Span my_out = out.part(job.rank * part_bytes, part_bytes);
  const u64 steps = steps_of<P>(part_bytes), stride = channel.count();
  for (u64 first = channel.id(); first < steps; first += stride * kSteps) {
    scatter(channel, in, part_bytes, first, steps);
#pragma unroll 1
    for (int k = 0; k < kSteps && first + k * stride < steps; ++k) {
      const u64 step = first + k * stride;
      Words<P> all[N];
      const Words<P> mine = Words<P>::load(my_in, step);
#pragma unroll
      for (int r = 0; r < N; ++r) all[r] = mine;
      if (!channel.receive(0, k, all)) return;
      const Words<P> result = fold_words<T, Op>(all, job.redop);
      channel.send_all(1, k, result);
      result.store(my_out, step);
    }
#pragma unroll 1
    for (int k = 0; k < kSteps && first + k * stride < steps; ++k) {
      const u64 step = first + k * stride;
      Words<P> all[N];
      if (!channel.receive(1, k, all)) return;
#pragma unroll
      for (int r = 0; r < N; ++r)
        if (r != job.rank) all[r].store(out.part(r * part_bytes, part_bytes), step);
    }
    channel.advance(2);
  }
  channel.close();
}

// push block p to rank p | reduce my block in rank order. job.bytes: of one block.
template <class P, class T, class Op, int N>
__device__ __forceinline__ void reduce_scatter_oneshot(const Job& job) {
  Channel<P, N> channel(job);
  const Span in(job.in, job.bytes * N), out(job.out, job.bytes);
  const Span my_in = in.part(job.rank * job.bytes, job.bytes);
  const u64 steps = steps_of<P>(job.bytes), stride = channel.count();
  for (u64 first = channel.id(); first < steps; first += stride * kSteps) {
    scatter(channel, in, job.bytes, first, steps);
#pragma unroll 1
    for (int k = 0; k < kSteps && first + k * stride < steps; ++k) {
      const u64 step = first + k * stride;
      Words<P> all[N];
      const Words<P> mine = Words<P>::load(my_in, step);
#pragma unroll
      for (int r = 0; r < N; ++r) all[r] = mine;
      if (!channel.receive(0, k, all)) return;
      fold_words<T, Op>(all, job.redop).store(out, step);
    }
    channel.advance(1);
  }
  channel.close();
}

// push my block to all | take everyone's. job.bytes: of one block.
template <class P, int N>
__device__ __forceinline__ void all_gather_oneshot(const Job& job) {
  Channel<P, N> channel(job);
  const Span in(job.in, job.bytes), out(job.out, job.bytes * N);
  const u64 steps = steps_of<P>(job.bytes), stride = channel.count();
  for (u64 first = channel.id(); first < steps; first += stride * kSteps) {
    Words<P> mine[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      if (first + k * stride < steps) mine[k] = Words<P>::load(in, first + k * stride);
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
#pragma unroll
      for (int r = 0; r < N; ++r) all[r].store(out.part(r * job.bytes, job.bytes), step);
    }
    channel.advance(1);
  }
  channel.close();
}

}  // namespace commlib
