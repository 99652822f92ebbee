// Which tokens of a call keep their slot: those behind which no other has it too.
#pragma once

#include "device/words.cuh"
#include "kernels/store/job.h"

namespace commlib::kernels {

constexpr int kStoreThreads = 256;  // of a block

template <class Job>
__device__ __forceinline__ i64 slot_of(const Job& job, i64 token) {
  return job.wide ? static_cast<const i64*>(job.slots)[token * job.slots_step]
                  : static_cast<i64>(static_cast<const i32*>(job.slots)[token * job.slots_step]);
}

// Whether a later token takes the same slot: bit g of the answer is of token first + g.
template <int kGroups, class Job>
__device__ __forceinline__ u32 gave_way(const Job& job, i64 first) {
  __shared__ u32 taken;
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  for (i64 x = first + threadIdx.x; x < job.tokens; x += kStoreThreads) {
    const i64 later = slot_of(job, x);
    for (int g = 0; g < kGroups; ++g)
      if (x > first + g && slot_of(job, first + g) == later) atomicOr(&taken, 1u << g);
  }
  __syncthreads();
  return taken;
}

// The same of one token for a block, where a thread need not look at more than one other.
template <class Job>
__device__ __forceinline__ bool gives_way(const Job& job, i64 token, i64 slot) {
  const i64 other = token + 1 + threadIdx.x, last = job.tokens - 1;
  const bool alike = slot_of(job, other < last ? other : last) == slot;
  return __syncthreads_or(alike & (other <= last));
}

// Slots behind each other: their lower halves, and 16 bytes of them at once.
struct Slots {
  const u8* data;
  u32 last, shift;  // a slot has 1 << shift bytes

  template <class Job>
  __device__ __forceinline__ explicit Slots(const Job& job)
      : data(static_cast<const u8*>(job.slots)),
        last(static_cast<u32>(job.tokens) - 1),
        shift(job.wide ? 3 : 2) {}

  // Whether the slots of a job are so, and make up a vector.
  template <class Job>
  static __device__ __forceinline__ bool are_in(const Job& job) {
    return job.slots_step == 1 && (reinterpret_cast<u64>(job.slots) & 15) == 0 && job.tokens >= 4;
  }
  // Whole ones.
  __device__ __forceinline__ u32 vectors() const { return (last + 1) >> (4 - shift); }
  // Beyond the end the last one is read.
  __device__ __forceinline__ u32 low(u32 token) const {
    return ld_here((token < last ? token : last) * (1u << shift) + data);
  }
  __device__ __forceinline__ uint4 vector(u32 i) const {
    const u32 last_vector = vectors() - 1;
    return ld_here_16(data + 16 * u64{i < last_vector ? i : last_vector});
  }
};

// A first look, at the lower halves of slots: whether any token of the block may have to give way.
// All threads of the block read a part of the later slots, kAhead vectors at a time, and compare it
// with all of the block's; most blocks stop here, after one barrier. Nothing is waited for before
// all is under way: that is why there are no branches.
template <int kGroups, u32 kAhead>
__device__ __forceinline__ bool may_give_way(const Slots& slots, u32 first, u32 token, u32 slot,
                                             u32 limit) {
  const u32 vectors = slots.vectors(), of_vector = 4 - slots.shift;  // log2 of slots
  const u32 behind = first + kGroups;
  u32 at = ((behind - 1) >> of_vector) + 1 + threadIdx.x;
  uint4 later[kAhead];
  const auto load = [&] {
#pragma unroll
    for (u32 k = 0; k < kAhead; ++k) later[k] = slots.vector(at + k * kStoreThreads);
  };
  load();
  // Of the block's tokens, one to compare with mine.
  const u32 other = first + threadIdx.x % kGroups, of_other = slots.low(other);
  // Behind the block, what is in no whole vector: up to three tokens at both ends.
  const u32 place = threadIdx.x & 3, edge = threadIdx.x & 4 ? slots.last - place : behind + place;
  const u32 of_edge = slots.low(edge);
  u32 mine[kGroups];
#pragma unroll
  for (u32 g = 0; g < kGroups; ++g) mine[g] = slots.low(first + g);
#pragma unroll
  for (u32 g = 0; g < kGroups; ++g) mine[g] = mine[g] < limit ? mine[g] : limit;
  const auto is_mine = [&](u32 low) {
    bool is = false;
#pragma unroll
    for (u32 g = 0; g < kGroups; ++g) is |= low == mine[g];
    return is;
  };
  bool alike = is_mine(of_edge) & (behind <= edge) & (edge <= slots.last);
  alike |= (token < other) & (other <= slots.last) & (of_other == slot) & (of_other < limit);
  while (true) {
#pragma unroll
    for (u32 k = 0; k < kAhead; ++k) {
      bool is = is_mine(later[k].x) | is_mine(later[k].z);
      if (slots.shift == 2) is |= is_mine(later[k].y) | is_mine(later[k].w);
      alike |= is & (at + k * kStoreThreads < vectors);
    }
    at += kAhead * kStoreThreads;
    if (at >= vectors) break;
    load();
  }
  return __syncthreads_or(alike);
}

template <int kGroups, class Job>
__device__ __forceinline__ bool may_give_way(const Job& job, i64 first, i64 token, i64 slot) {
  if (!Slots::are_in(job)) return true;
  constexpr u32 kNegative = 1u << 31;
  const Slots slots(job);
  // Below 2^31 slots what looks negative names none: padding is no reason for a second look.
  const u32 limit = job.num_slots <= i64{kNegative} ? kNegative : ~0u;
  const auto here = static_cast<u32>(first), my = static_cast<u32>(token);
  const auto low = static_cast<u32>(slot);
  const u32 vectors = slots.vectors();
  return vectors <= kStoreThreads       ? may_give_way<kGroups, 1>(slots, here, my, low, limit)
         : vectors <= 2 * kStoreThreads ? may_give_way<kGroups, 2>(slots, here, my, low, limit)
                                        : may_give_way<kGroups, 4>(slots, here, my, low, limit);
}

}  // namespace commlib::kernels
