// Phases of packets that give each rank its own part of a tensor, and that bring parts together.
#pragma once

#include "device/oneshot.cuh"

namespace commlib {

// Sends steps of part p of `in` to rank p. Part p begins at p * part_bytes. The words of the next
// round are on their way before they are needed.
template <int kSteps, class P, int N>
class Scatter {
 public:
  __device__ __forceinline__ Scatter(const Channel<P, N>& channel, const TensorOf<P>& in,
                                     u64 part_bytes, const Steps& steps)
      : channel_(channel), in_(in), part_bytes_(part_bytes), steps_(steps) {
#pragma unroll
    for (int p = 1; p < N; ++p) parts_[p - 1] = part(p);
  }
  __device__ __forceinline__ void begin() { load(0); }
  // The steps from k on, as the numbers from i on; every round in turn.
  __device__ __forceinline__ void send(int i, int k) {
    mark(Phase::publish);
#pragma unroll
    for (int c = 0; c < kSteps; ++c)
#pragma unroll
      for (int p = 1; p < N; ++p)
        if (steps_.has(k + c)) channel_.send(p, i + c, next_[p - 1][c]);
    load(k + kSteps);
  }

 private:
  static constexpr bool kKnown = TensorOf<P>::kPartsAreKnown;

  __device__ __forceinline__ TensorOf<P> part(int p) const {
    return in_.part_of(channel_.after(p), part_bytes_);
  }
  __device__ __forceinline__ void load(int k) {
#pragma unroll
    for (int p = 1; p < N; ++p)
      load_round<kSteps, P>(kKnown ? parts_[p - 1] : part(p), steps_, k, next_[p - 1]);
  }
  const Channel<P, N>& channel_;
  const TensorOf<P>& in_;
  u64 part_bytes_;
  const Steps& steps_;
  TensorOf<P> parts_[kPeers<N>];
  Round<kSteps, P> next_[kPeers<N>];
};

// Brings steps of each peer's part, from number i on, to their place. False: the call is over.
template <int kSteps, class P, int N>
__device__ __forceinline__ bool take_parts(const Channel<P, N>& channel, int i, int k,
                                           const Steps& steps, const TensorOf<P>& out,
                                           u64 part_bytes) {
  Words<P> words[kSteps][kPeers<N>];
  if (!take_round(channel, i, steps, k, words)) return false;
#pragma unroll
  for (int p = 0; p < N - 1; ++p) {
    const TensorOf<P> part = out.part_of(channel.peer(p), part_bytes);
#pragma unroll
    for (int c = 0; c < kSteps; ++c)
      if (steps.has(k + c)) words[c][p].store(part, steps[k + c]);
  }
  return true;
}

// push part p to rank p | reduce my part in rank order | push it to all | take theirs. A round's
// parts have the numbers before those of its results. The parts of the next round are on their way
// while results are waited for.
template <int kSteps, class T, class Op, class P, int N>
__device__ __forceinline__ void all_reduce_in_parts(Channel<P, N>& channel, const Job& job,
                                                    u64 part_bytes, const Steps& steps) {
  const TensorOf<P> in(job.in, job.bytes), out(job.out, job.bytes);
  const TensorOf<P> my_in = in.part_of(job.rank, part_bytes);
  const TensorOf<P> my_out = out.part_of(job.rank, part_bytes);
  Scatter<kSteps, P, N> scatter(channel, in, part_bytes, steps);
  channel.begin();
  scatter.begin();
  channel.use_number();
  scatter.send(0, 0);
  int k = 0;
#pragma unroll 1
  while (steps.has(k)) {
    Round<kSteps, P> sums;
    if (!take_and_reduce<kSteps, T, Op>(channel, 2 * k, k, steps, my_in, job.redop, sums)) return;
    const int next = k + steps.template in_round<kSteps>(k), results = k + next;
    send_round<kSteps>(channel, results, steps, k, sums);
    channel.let_next();
    store_round<kSteps, P>(sums, my_out, steps, k);
    if (steps.has(next)) scatter.send(2 * next, next);
    if (!take_parts<kSteps>(channel, results, k, steps, out, part_bytes)) return;
    k = next;
  }
  // A short call leaves numbers out, so that the next but one takes the same slots.
  const int used = 2 * k;
  const bool leaves_out = !P::kFlags && used > 0 && used < P::kSlots / 2 && channel.crowds_cache();
  channel.close(leaves_out ? P::kSlots / 2 : used);
}
template <class P, class T, class Op, int N>
__device__ __forceinline__ void all_reduce_twoshot(const Job& job) {
  Channel<P, N> channel(job);
  const u64 part_bytes = ((job.bytes + N - 1) / N + 15) / 16 * 16;
  const Steps steps = channel.steps(part_bytes);
  if (in_twos<P, N>(steps))
    all_reduce_in_parts<2, T, Op>(channel, job, part_bytes, steps);
  else
    all_reduce_in_parts<1, T, Op>(channel, job, part_bytes, steps);
}

// push block p to rank p | reduce my block in rank order. job.bytes: of one block.
template <int kSteps, class T, class Op, class P, int N>
__device__ __forceinline__ void reduce_scatter_in(Channel<P, N>& channel, const Job& job,
                                                  const Steps& steps) {
  const TensorOf<P> in(job.in, job.bytes * N), out(job.out, job.bytes);
  const TensorOf<P> my_in = in.part_of(job.rank, job.bytes);
  Scatter<kSteps, P, N> scatter(channel, in, job.bytes, steps);
  channel.begin();
  scatter.begin();
  channel.use_number();
  const auto take = [&](int k) {
    return take_reduced<kSteps, T, Op>(channel, k, steps, my_in, job.redop, out);
  };
  send_and_take<kSteps>(channel, steps, [&](int k) { scatter.send(k, k); }, take);
}
template <class P, class T, class Op, int N>
__device__ __forceinline__ void reduce_scatter_oneshot(const Job& job) {
  Channel<P, N> channel(job);
  const Steps steps = channel.steps(job.bytes);
  if (in_twos<P, N>(steps))
    reduce_scatter_in<2, T, Op>(channel, job, steps);
  else
    reduce_scatter_in<1, T, Op>(channel, job, steps);
}

// push my block to all | take everyone's. job.bytes: of one block.
template <class P, int N>
__device__ __forceinline__ void all_gather_oneshot(const Job& job) {
  Channel<P, N> channel(job);
  const Steps steps = channel.steps(job.bytes);
  const TensorOf<P> in(job.in, job.bytes), out(job.out, job.bytes * N);
  const TensorOf<P> my_out = out.part_of(job.rank, job.bytes);
  channel.begin();
  Round<1, P> next;
  load_round<1, P>(in, steps, 0, next);
  channel.use_number();
  const auto send = [&](int k) {
    send_round<1>(channel, k, steps, k, next);
    store_round<1, P>(next, my_out, steps, k);
    load_round<1, P>(in, steps, k + 1, next);
  };
  const auto take = [&](int k) {
    if (!take_parts<1>(channel, k, k, steps, out, job.bytes)) return false;
    channel.let_next();
    return true;
  };
  send_and_take<1>(channel, steps, send, take);
}

}  // namespace commlib
