// Packets: data that carries its own flag, so that a reader needs no barrier and a writer no fence.
//
//   LL      16 bytes: 8 of data, 8 of flag        half the wire, the smallest unit
//   LL128   128 bytes: 120 of data, 8 of flag     15/16 of the wire; a warp writes a line at once
//
// A channel is one warp of the grid and the same warp on every peer. Its slots have two halves that
// epochs use in turn. A warp writes half e again in epoch e + 2; before that it has received every
// peer's packets of epoch e + 1, which the peer sent after it had read all of epoch e. So every
// kernel keeps one rule: in each epoch, a channel sends to every peer and reads from every peer.
//
// The flag is the epoch and, below it, the call's signature: a peer in another call is noticed.
// Epochs have 48 bits, lie in Control and survive the kernel, so graphs replay. LL and LL128 have
// memory of their own: a flag is only ever overwritten by a flag.
#pragma once

#include "device/wait.cuh"

namespace commlib {

constexpr u32 kAll = 0xffffffffu;

// At most in a block: more ranks need more registers.
template <int N>
constexpr int kPacketThreads = N > 4 ? 256 : 512;

constexpr u32 kSmallBlock = 128;                   // threads; of their grids several fit a GPU
constexpr u32 kStepBytes = 512;                    // of a warp
constexpr int kSteps = kPacketBytes / kStepBytes;  // of one epoch

// Each lane of a warp has its own packet.
struct Ll {
  static constexpr int kWords = 1;       // of data, for each lane
  static constexpr int kStepWords = 32;  // of data, for the warp in one step

  static __device__ constexpr u64 begin(const Places& at) { return at.ll; }
  static __device__ __forceinline__ u64* epochs(Control* c) { return c->ll_epoch; }
  // The place of this lane's k-th word in its step.
  static __device__ __forceinline__ u32 word_of(u32 lane, int) { return lane; }
  static __device__ __forceinline__ bool has(u32, int) { return true; }
  static __device__ __forceinline__ Pair pack(const u64 (&w)[1], u64 flag, u32) {
    return {w[0], flag};
  }
  static __device__ __forceinline__ u64 flag_of(Pair p) { return p.b; }
  static __device__ __forceinline__ void unpack(Pair p, u64 (&w)[1]) { w[0] = p.a; }
};

// Eight lanes share a line of 128 bytes; the last half of the eighth is the flag.
struct Ll128 {
  static constexpr int kWords = 2;
  static constexpr int kStepWords = 60;

  static __device__ constexpr u64 begin(const Places& at) { return at.ll128; }
  static __device__ __forceinline__ u64* epochs(Control* c) { return c->ll128_epoch; }
  static __device__ __forceinline__ u32 word_of(u32 lane, int k) {
    return (lane >> 3) * 15 + 2 * (lane & 7) + k;
  }
  static __device__ __forceinline__ bool has(u32 lane, int k) { return k == 0 || (lane & 7) != 7; }
  static __device__ __forceinline__ Pair pack(const u64 (&w)[2], u64 flag, u32 lane) {
    return {w[0], (lane & 7) == 7 ? flag : w[1]};
  }
  static __device__ __forceinline__ u64 flag_of(Pair p) {
    return __shfl_sync(kAll, p.b, (threadIdx.x & 31) | 7);
  }
  static __device__ __forceinline__ void unpack(Pair p, u64 (&w)[2]) {
    w[0] = p.a;
    w[1] = p.b;
  }
};

// This lane's words of one step.
template <class P>
struct Words {
  u64 w[P::kWords];

  static __device__ __forceinline__ Words load(const Span& from, u64 step) {
    const u32 lane = threadIdx.x & 31;
    Words words;
#pragma unroll
    for (int k = 0; k < P::kWords; ++k)
      words.w[k] = P::has(lane, k) ? from.word(step * P::kStepWords + P::word_of(lane, k)) : 0;
    return words;
  }
  __device__ __forceinline__ void store(const Span& to, u64 step) const {
    const u32 lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < P::kWords; ++k)
      if (P::has(lane, k)) to.set_word(step * P::kStepWords + P::word_of(lane, k), w[k]);
  }
};

template <class P, int N>
class Channel {
 public:
  __device__ explicit Channel(const Job& job)
      : job_(job),
        id_(blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)),
        lane_(threadIdx.x & 31),
        epoch_(0) {
    wait_for_stream();
    if (blockDim.x <= kSmallBlock) let_next_start();
    epoch_ = P::epochs(control_of(job, job.rank))[id_] + 1;
  }

  // The warps of this grid, and this one's place among them.
  __device__ u32 count() const { return gridDim.x * (blockDim.x >> 5); }
  __device__ u32 id() const { return id_; }

  // `n` epochs are over: their packets are sent and read.
  __device__ void advance(int n) { epoch_ += n; }
  // The epoch outlives the kernel.
  __device__ void close() {
    if (lane_ == 0) P::epochs(control_of(job_, job_.rank))[id_] = epoch_ - 1;
    if (threadIdx.x == 0) count_call(job_);
  }

  // `ahead` counts epochs from the first that is not over.
  __device__ __forceinline__ void send(int peer, int ahead, int step, const Words<P>& words) const {
    const u64 epoch = epoch_ + ahead;
    st_relaxed_sys(job_.arena[peer] + place(epoch, job_.rank, step),
                   P::pack(words.w, flag(epoch), lane_));
  }
  __device__ __forceinline__ void send_all(int ahead, int step, const Words<P>& words) const {
#pragma unroll
    for (int i = 1; i < N; ++i) send(after(i), ahead, step, words);
  }

  // The words of this step from every peer, or from those that `wanted(r)` names; others, and
  // `all[rank]`, stay as they were. False: the call is over.
  __device__ __forceinline__ bool receive(int ahead, int step, Words<P> (&all)[N]) const {
    return receive(ahead, step, all, [](int) { return true; });
  }
  template <class Wanted>
  __device__ __forceinline__ bool receive(int ahead, int step, Words<P> (&all)[N],
                                          Wanted wanted) const {
    const u64 epoch = epoch_ + ahead, expected = flag(epoch);
    Pair got[N];
    Patience patience;
    while (true) {
      bool ready = true;
#pragma unroll
      for (int r = 0; r < N; ++r)
        if (r != job_.rank && wanted(r))
          got[r] = ld_relaxed_sys(job_.arena[job_.rank] + place(epoch, r, step));
#pragma unroll
      for (int r = 0; r < N; ++r)
        if (r != job_.rank && wanted(r)) ready &= P::flag_of(got[r]) == expected;
      if (__all_sync(kAll, ready)) break;
      if (!patience.runs_out()) continue;
      bool leave = false;
#pragma unroll
      for (int r = 0; r < N; ++r) {
        const u64 seen = P::flag_of(got[r]);
        if (r != job_.rank && wanted(r) && seen != expected)
          leave |= patience.gives_up(job_, r, seen, expected);
      }
      if (__any_sync(kAll, leave)) return false;
    }
#pragma unroll
    for (int r = 0; r < N; ++r)
      if (r != job_.rank && wanted(r)) P::unpack(got[r], all[r].w);
    return true;
  }
  // Rank i places after this one.
  __device__ __forceinline__ int after(int i) const {
    const int r = job_.rank + i;
    return r < N ? r : r - N;
  }

 private:
  __device__ __forceinline__ u64 flag(u64 epoch) const {
    return epoch << kSignatureBits | job_.signature;
  }
  __device__ __forceinline__ u64 place(u64 epoch, int source, int step) const {
    constexpr u64 begin = P::begin(places(N));
    const u64 slot = ((epoch & 1) * N + source) * kChannels + id_;
    return begin + slot * kPacketBytes + step * kStepBytes + lane_ * 16;
  }
  const Job& job_;
  u32 id_, lane_;
  u64 epoch_;  // the first that is not over
};

// The steps of a transfer; channels take them in turn, kSteps of them in an epoch.
template <class P>
__device__ __forceinline__ u64 steps_of(u64 bytes) {
  return (bytes + 8 * P::kStepWords - 1) / (8 * P::kStepWords);
}

}  // namespace commlib
