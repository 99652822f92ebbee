// A channel: one warp of the grid and the same warp on every peer, and the packets between them
// (device/packet.cuh).
//
// What is sent and looked for depends on a number that is read behind the call ahead. All else is
// ready before: on this way every instruction takes a call of 2 us longer.
#pragma once

#include "device/packet.cuh"

namespace commlib {

// kReady: addresses stay in registers, where there are so many.
template <class P, int N, bool kReady = (N == 2 || (N <= 4 && P::kWhole))>
class Channel {
 public:
  __device__ __forceinline__ explicit Channel(const Job& job, bool lets_next_start = true)
      : job_(job),
        id_((threadIdx.x >> 5) * gridDim.x + blockIdx.x),
        lane_(threadIdx.x & 31),
        lets_next_start_(lets_next_start),
        control_(control_of(job, job.rank)) {
    if (!kReady) return;
    mine_ = slots_of(job.rank, 0);
    known(mine_);
    to_ = destinations();
    known(control_);
    if (has_signature_word()) {
      signature_in_ = signature_word(job.rank, peer(lane_));
      known(signature_in_);
    }
  }

  // Where this lane's packets go.
  struct Destinations {
    u8* slots[kPeers<N>];  // in the memory of the ranks after this one
    u64* signature;        // where it says what the call is
  };
  // Known here; for the first packets of channels that do not keep them.
  __device__ __forceinline__ Destinations destinations() const {
    Destinations to;
#pragma unroll
    for (int p = 1; p < N; ++p) {
      to.slots[p - 1] = slots_of(after(p), job_.rank);
      known(to.slots[p - 1]);
    }
    if (has_signature_word()) {
      to.signature = signature_word(after(lane_ + 1), job_.rank);
      known(to.signature);
    }
    return to;
  }

  // Waits for the call ahead.
  __device__ __forceinline__ void begin() {
    begin_marked();
    if (lets_next_start_ && lets_next_start(job_, gridDim.x)) let_next_start();
    last_ = P::numbers(control_)[id_];
  }

  __device__ int rank() const { return job_.rank; }

  // This channel's steps of `bytes`.
  __device__ __forceinline__ Steps steps(u64 bytes) const {
    constexpr u64 kStepBytes = 8 * P::kStepWords;
    return {id_, gridDim.x * (blockDim.x >> 5),
            static_cast<u32>((bytes + kStepBytes - 1) / kStepBytes)};
  }

  // What was loaded so far is on its way before the number is used, which comes from memory, too.
  __device__ __forceinline__ void use_number() { asm volatile("" : "+l"(last_)); }

  // Packets of all peers have come, and what others wait for is sent.
  __device__ __forceinline__ void let_next() const {
    if (lets_next_start_ && !lets_next_start(job_, gridDim.x)) let_next_start();
  }

  // Whether the slots of this grid do not stay in the L2 cache when calls take all of them in turn.
  __device__ __forceinline__ bool crowds_cache() const {
    constexpr u64 kSlotBytes = P::kSlots * kWarpPackets * (N - 1);  // of one channel
    return gridDim.x * (blockDim.x >> 5) * kSlotBytes >= kCrowdingBytes;
  }

  // The call has used `n` numbers, which outlives the kernel.
  __device__ __forceinline__ void close(int n) {
    if (lane_ == 0) P::numbers(control_)[id_] = last_ + n;
    if (threadIdx.x == 0) count_call(job_, control_);
    mark(Phase::over);
  }

  // `i` counts the numbers of this call. To the rank `p` places after this one; a lane that has
  // nothing to send may still be one that says what the call is.
  __device__ __forceinline__ void send(int p, int i, const Words<P>& words, bool has = true) const {
    if (kReady) return send(p, i, words, to_, has);
    if (has)
      st_relaxed_sys(slots_of(after(p), job_.rank) + slot(i), P::pack(words.w, flag_of(i), lane_));
    if (i == 0 && says_signature(p))
      st_relaxed_sys(signature_word(after(p), job_.rank), flag_of(0));
  }
  __device__ __forceinline__ void send(int p, int i, const Words<P>& words, const Destinations& to,
                                       bool has = true) const {
    if (has) st_relaxed_sys(to.slots[p - 1] + slot(i), P::pack(words.w, flag_of(i), lane_));
    if (i == 0 && says_signature(p)) st_relaxed_sys(to.signature, flag_of(0));
  }
  __device__ __forceinline__ void send_all(int i, const Words<P>& words, bool has = true) const {
    mark(Phase::publish);
#pragma unroll
    for (int p = 1; p < N; ++p) send(p, i, words, has);
  }

  // The words of the numbers from i on, of kSenders peers from the `first`-th on: of those that
  // come, `comes(c, p)`; others stay as they were. False: the call is over.
  template <int kCount, int kSenders, class Comes>
  __device__ __forceinline__ bool receive(int i, Words<P> (&words)[kCount][kSenders], Comes comes,
                                          int first = 0) const {
    mark(Phase::wait);
    constexpr bool kKnown = N <= 4;
    u8* from[kSenders];
#pragma unroll
    for (int p = 0; p < kSenders; ++p) {
      from[p] = (kReady ? mine_ : slots_of(job_.rank, 0)) + peer(first + p) * kOfRank;
      if (kKnown) known(from[p]);
    }
    const auto place = [&](int c, int p) {
      return (kKnown ? from[p] : slots_of(job_.rank, peer(first + p))) + slot(i + c);
    };
    const bool checks =
        i == 0 && has_signature_word() && lane_ - first < static_cast<u32>(kSenders);
    u64* signature_in = signature_in_;
    if (!kReady && checks) {
      signature_in = signature_word(job_.rank, peer(lane_));
      known(signature_in);
    }
    const bool looks_back = !P::kFlags && i + kCount > kTurn;
    Pair got[kCount][kSenders];
    Patience patience;
    while (true) {
#pragma unroll
      for (int c = 0; c < kCount; ++c)
#pragma unroll
        for (int p = 0; p < kSenders; ++p)
          got[c][p] = ld_relaxed_sys(place(c, p));  // without a branch: all are under way at once
      u64 signature = flag_of(0);
      if (checks) signature = ld_relaxed_sys(signature_in);
      const bool empty = !looks_back || are_empty<kCount>(i - kTurn);
      bool ready = empty && agrees(signature);
#pragma unroll
      for (int p = 0; p < kSenders; ++p)
#pragma unroll
        for (int c = 0; c < kCount; ++c) ready &= !comes(c, p) || there(got[c][p], i + c);
      if (__all_sync(kAll, ready)) break;
      if (!patience.runs_out()) continue;
      bool leave = false;
#pragma unroll
      for (int p = 0; p < kSenders; ++p) {
        u64 seen = __shfl_sync(kAll, signature, first + p), hoped = flag_of(0);
        bool waits = !empty || !agrees(seen);
#pragma unroll
        for (int c = kCount - 1; c >= 0; --c) {
          const u64 flag = P::flag_of(got[c][p], lane_);
          if (!comes(c, p) || there(got[c][p], i + c)) continue;
          waits = true;
          if (P::kFlags) seen = flag, hoped = flag_of(i + c);
        }
        leave |= gives_up(patience, peer(first + p), waits, seen, hoped);
      }
      if (__any_sync(kAll, leave)) return false;
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c)
#pragma unroll
      for (int p = 0; p < kSenders; ++p) {
        if (!comes(c, p)) continue;
        if (!P::kFlags) st_relaxed_sys(place(c, p), Pair{~0ull, ~0ull});
        P::unpack(got[c][p], words[c][p].w);
      }
    mark(Phase::copy);
    return true;
  }
  // The same of all peers.
  template <int kCount>
  __device__ __forceinline__ bool receive(int i, Words<P> (&words)[kCount][kPeers<N>]) const {
    return receive(i, words, [](int, int) { return true; });
  }
  // The i-th rank but this one.
  __device__ __forceinline__ int peer(int i) const { return i < job_.rank ? i : i + 1; }
  // Rank i places after this one.
  __device__ __forceinline__ int after(int i) const {
    const int r = job_.rank + i;
    return r < N ? r : r - N;
  }

 private:
  static constexpr u64 kNumber = channels(N) * kWarpPackets, kOfRank = P::kSlots * kNumber;

  // This lane's in the memory of `rank`, which `source` writes.
  __device__ __forceinline__ u8* slots_of(int rank, int source) const {
    constexpr u64 begin = P::begin(places(N));
    return job_.arena[rank] + begin + source * kOfRank + id_ * kWarpPackets + lane_ * 16;
  }
  // From the first slot of a channel. Those of one number lie side by side, as their data does.
  __device__ __forceinline__ u64 slot(int i) const {
    return (static_cast<u32>(last_) + 1 + i) % P::kSlots * kNumber;
  }
  __device__ __forceinline__ u64 flag_of(int i) const {
    return (last_ + 1 + i) << kSignatureBits | job_.signature;
  }
  __device__ __forceinline__ bool there(Pair got, int i) const {
    return P::ready(got, flag_of(i), lane_);
  }
  // Whether what all peers sent as the numbers from i on has been taken out of its slots.
  template <int kCount>
  __device__ __forceinline__ bool are_empty(int i) const {
    u32 all = Lamport::kEmpty;
#pragma unroll(N > 4 ? 1 : N)
    for (int p = 0; p < N - 1; ++p) {
      const u8* from = (kReady ? mine_ : slots_of(job_.rank, 0)) + peer(p) * kOfRank;
#pragma unroll
      for (int c = 0; c < kCount; ++c) all &= ld_relaxed_sys(Lamport::mark_of(from + slot(i + c)));
    }
    return all == Lamport::kEmpty;
  }
  // Where packets have no flags, the first lanes of a block say and hear what the call is, each to
  // and from one peer: what `source` says to `rank`.
  __device__ __forceinline__ bool has_signature_word() const {
    return !P::kFlags && threadIdx.x + 1 < N;
  }
  // The lane of that number says it to this peer.
  __device__ __forceinline__ bool says_signature(int p) const {
    return has_signature_word() && static_cast<int>(lane_) == p - 1;
  }
  __device__ __forceinline__ u64* signature_word(int rank, int source) const {
    return &control_of(job_, rank)->lamport_signature[blockIdx.x][source];
  }
  // A peer that is further on has seen that this rank made the same call.
  __device__ __forceinline__ bool agrees(u64 signature) const {
    return P::kFlags || signature == flag_of(0) || signature >> kSignatureBits > last_ + 1;
  }
  // Whether to stop waiting for a peer; the first lane that waits for it asks.
  __device__ __forceinline__ bool gives_up(Patience& patience, int peer, bool waits, u64 seen,
                                           u64 hoped) const {
    const u32 all = __ballot_sync(kAll, waits);
    return waits && static_cast<int>(lane_) == __ffs(all) - 1 &&
           patience.gives_up(job_, peer, seen, hoped);
  }

  const Job& job_;
  const u32 id_, lane_;
  const bool lets_next_start_;
  Control* control_;    // this rank's
  u8* mine_ = nullptr;  // this lane's slots in its own memory, that rank 0 writes
  Destinations to_;
  u64* signature_in_ = nullptr;  // where this lane hears what the call is
  u64 last_;                     // number before this call
};

}  // namespace commlib
