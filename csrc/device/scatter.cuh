// Phases of packets that give each rank its own part of a tensor, and that bring parts together.
#pragma once

#include "device/oneshot.cuh"

namespace commlib {

// Sends steps of part p of `in` to rank p. Part p begins at p * part_bytes. The words of the next
// step are on their way before they are needed.
template <class P, int N>
class Scatter {
 public:
  __device__ __forceinline__ Scatter(const Channel<P, N>& channel, const Span& in, u64 part_bytes,
                                     const Steps& steps)
      : channel_(channel), in_(in), part_bytes_(part_bytes), steps_(steps) {
    load(0);
  }
  // Step k as number i; every step in turn.
  __device__ __forceinline__ void send(int i, int k) {
    mark(Phase::publish);
#pragma unroll
    for (int p = 0; p < N - 1; ++p) channel_.send(channel_.after(p + 1), i, next_[p]);
    load(k + 1);
  }

 private:
  __device__ __forceinline__ void load(int k) {
#pragma unroll
    for (int p = 0; p < N - 1; ++p) {
      const Span part = in_.part(channel_.after(p + 1) * part_bytes_, part_bytes_);
      next_[p] = Words<P>::load(part, steps_[k]);
    }
  }
  const Channel<P, N>& channel_;
  const Span& in_;
  u64 part_bytes_;
  const Steps& steps_;
  Words<P> next_[kPeers<N>];
};

// Brings a step of each peer's part, number i, to its place. False: the call is over.
template <class P, int N>
__device__ __forceinline__ bool take_parts(const Channel<P, N>& channel, int i, u32 step,
                                           const Span& out, u64 part_bytes) {
  Words<P> words[kPeers<N>];
  if (!channel.receive(i, words)) return false;
#pragma unroll
  for (int p = 0; p < N - 1; ++p)
    words[p].store(out.part(channel.peer(p) * part_bytes, part_bytes), step);
  return true;
}

// push part p to rank p | reduce my part in rank order | push it to all | take theirs. Step k is
// number 2 * k as a part and number 2 * k + 1 as a result.
template <class P, class T, class Op, int N>
__device__ __forceinline__ void all_reduce_twoshot(const Job& job) {
  Channel<P, N> channel(job);
  const u64 part_bytes = ((job.bytes + N - 1) / N + 15) / 16 * 16;
  const Span in(job.in, job.bytes), out(job.out, job.bytes);
  const Span my_in = in.part(job.rank * part_bytes, part_bytes);
  const Span my_out = out.part(job.rank * part_bytes, part_bytes);
  const Steps steps = channel.steps(part_bytes);
  Scatter<P, N> scatter(channel, in, part_bytes, steps);
  int k = 0;
#pragma unroll 1
  for (; steps.has(k); ++k) {
    scatter.send(2 * k, k);
    Words<P> sum;
    if (!take_and_reduce<T, Op>(channel, 2 * k, steps[k], my_in, job.redop, sum)) return;
    channel.send_all(2 * k + 1, sum);
    sum.store(my_out, steps[k]);
    if (!take_parts(channel, 2 * k + 1, steps[k], out, part_bytes)) return;
  }
  channel.close(2 * k);
}

// push block p to rank p | reduce my block in rank order. job.bytes: of one block.
template <class P, class T, class Op, int N>
__device__ __forceinline__ void reduce_scatter_oneshot(const Job& job) {
  Channel<P, N> channel(job);
  const Span in(job.in, job.bytes * N), out(job.out, job.bytes);
  const Span my_in = in.part(job.rank * job.bytes, job.bytes);
  const Steps steps = channel.steps(job.bytes);
  Scatter<P, N> scatter(channel, in, job.bytes, steps);
  const auto take = [&](int k) {
    return take_reduced<T, Op>(channel, k, steps[k], my_in, job.redop, out);
  };
  send_and_take(channel, steps, [&](int k) { scatter.send(k, k); }, take);
}

// push my block to all | take everyone's. job.bytes: of one block.
template <class P, int N>
__device__ __forceinline__ void all_gather_oneshot(const Job& job) {
  Channel<P, N> channel(job);
  const Span in(job.in, job.bytes), out(job.out, job.bytes * N);
  const Span my_out = out.part(job.rank * job.bytes, job.bytes);
  const Steps steps = channel.steps(job.bytes);
  Words<P> next = Words<P>::load(in, steps[0]);
  const auto send = [&](int k) {
    channel.send_all(k, next);
    next.store(my_out, steps[k]);
    next = Words<P>::load(in, steps[k + 1]);
  };
  const auto take = [&](int k) { return take_parts(channel, k, steps[k], out, job.bytes); };
  send_and_take(channel, steps, send, take);
}

}  // namespace commlib
