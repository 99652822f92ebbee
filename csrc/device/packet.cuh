// Packets: data that says itself when it is there, so that a reader needs no barrier and a writer
// no fence.
//
//   LL       16 bytes: 8 of data, 8 of flag       half the wire, the smallest unit
//   LL128    128 bytes: 120 of data, 8 of flag    15/16 of the wire; a warp writes a line at once
//   Lamport  16 bytes of data, no flag            all of the wire; sums of floats only
//
// A channel is one warp of the grid and the same warp on every peer. Its packets are numbered
// through the life of the communicator, and a packet lies in slot number % kSlots. Every kernel
// keeps one rule: number q is sent when all up to q - kAhead were taken from every peer. The peer
// that sent those had taken all up to q - 2 * kAhead, so the slot was read.
//
// The flag is the number and, below it, the call's signature: a peer in another call is noticed.
// Numbers have 48 bits, lie in Control and survive the kernel, so graphs replay. Each protocol has
// memory of its own: a flag is only ever overwritten by a flag.
//
// Where there is no flag, an empty slot holds a NaN that nobody sends: all bits of its last word
// are set. The reader puts it back. On a loaded GPU that store can take longer than a packet's way
// to the peer and the next one's way back, which it would then destroy. So there are twice as many
// slots, and who takes number q also reads that the slot of q - 2 * kAhead is empty: a peer that
// sends q + 2 * kAhead there has taken q + kAhead, which is sent after that. What a call ahead has
// emptied needs no look, since the end of a kernel orders its stores.
//
// The first warp of each block tells the peers the call's number and signature in a word of its
// own, which the same warp of theirs looks for with the first packets.
#pragma once

#include "device/wait.cuh"

namespace commlib {

constexpr u32 kAll = 0xffffffffu;

// At most in a block: more ranks need more registers.
template <int N>
constexpr int kPacketThreads = N > 4 ? 256 : 512;

template <int N>
constexpr int kPeers = N > 1 ? N - 1 : 1;  // length of what is there for each of them

// What a warp moves at once is a step: a packet of each lane. `load` and `store` say where in a
// tensor a lane's words of a step lie.

// Each packet has its own flag.
template <bool kAligned>
struct LlOf {
  using Tensor = Span;
  static constexpr bool kFlags = true, kWhole = kAligned;
  static constexpr int kSlots = kTurn;
  static constexpr int kWords = 1;       // of data, for each lane
  static constexpr int kStepWords = 32;  // of data, for the warp

  static __device__ constexpr u64 begin(const Places& at) { return at.ll; }
  static __device__ __forceinline__ u64* numbers(Control* c) { return c->ll_number; }
  static __device__ __forceinline__ void load(const Span& from, u32 step, u32 lane, u64 (&w)[1]) {
    w[0] = from.word_here<kAligned>(u64{step} * kStepWords + lane);
  }
  static __device__ __forceinline__ void store(const Span& to, u32 step, u32 lane,
                                               const u64 (&w)[1]) {
    to.set_word_here<kAligned>(u64{step} * kStepWords + lane, w[0]);
  }
  static __device__ __forceinline__ Pair pack(const u64 (&w)[1], u64 flag, u32) {
    return {w[0], flag};
  }
  static __device__ __forceinline__ void unpack(Pair p, u64 (&w)[1]) { w[0] = p.a; }
  // Whether this lane has nothing against it: a warp's packets are there when no lane has.
  static __device__ __forceinline__ bool ready(Pair p, u64 flag, u32) { return p.b == flag; }
  static __device__ __forceinline__ u64 flag_of(Pair p, u32) { return p.b; }
};

using Ll = LlOf<false>;        // for tensors at any address
using AlignedLl = LlOf<true>;  // for those that are aligned; peers need not agree

// Eight lanes share a line of 128 bytes, whose last word is the flag. So 28 lanes carry the first
// 28 pairs of a step's words, and the last of each eight one of the four words behind them.
struct Ll128 {
  using Tensor = Span;
  static constexpr bool kFlags = true, kWhole = false;
  static constexpr int kSlots = kTurn;
  static constexpr int kWords = 2;
  static constexpr int kStepWords = 60;

  static __device__ constexpr u64 begin(const Places& at) { return at.ll128; }
  static __device__ __forceinline__ u64* numbers(Control* c) { return c->ll128_number; }
  static __device__ __forceinline__ bool last(u32 lane) { return (lane & 7) == 7; }
  static __device__ __forceinline__ u64 first_word(u32 step, u32 lane) {
    return u64{step} * kStepWords + (last(lane) ? 56 + lane / 8 : 2 * (lane - lane / 8));
  }
  static __device__ __forceinline__ void load(const Span& from, u32 step, u32 lane, u64 (&w)[2]) {
    const u64 at = first_word(step, lane);
    w[0] = from.word(at);
    w[1] = last(lane) ? 0 : from.word(at + 1);
  }
  static __device__ __forceinline__ void store(const Span& to, u32 step, u32 lane,
                                               const u64 (&w)[2]) {
    const u64 at = first_word(step, lane);
    to.set_word(at, w[0]);
    if (!last(lane)) to.set_word(at + 1, w[1]);
  }
  static __device__ __forceinline__ Pair pack(const u64 (&w)[2], u64 flag, u32 lane) {
    return {w[0], last(lane) ? flag : w[1]};
  }
  static __device__ __forceinline__ void unpack(Pair p, u64 (&w)[2]) {
    w[0] = p.a;
    w[1] = p.b;
  }
  static __device__ __forceinline__ bool ready(Pair p, u64 flag, u32 lane) {
    return !last(lane) || p.b == flag;
  }
  static __device__ __forceinline__ u64 flag_of(Pair p, u32 lane) {
    return __shfl_sync(kAll, p.b, lane | 7);
  }
};

// The same for tensors that are aligned.
struct AlignedLl128 : Ll128 {
  static __device__ __forceinline__ void load(const Span& from, u32 step, u32 lane, u64 (&w)[2]) {
    const u64 at = first_word(step, lane);
    w[0] = from.word_here<true>(at);
    w[1] = last(lane) ? 0 : from.word_here<true>(at + 1);
  }
  static __device__ __forceinline__ void store(const Span& to, u32 step, u32 lane,
                                               const u64 (&w)[2]) {
    const u64 at = first_word(step, lane);
    to.set_word_here<true>(at, w[0]);
    if (!last(lane)) to.set_word_here<true>(at + 1, w[1]);
  }
};

// The same for tensors whose pairs are whole: aligned to 16 bytes, and of so many. Most are, and
// peers need not agree.
struct WholeLl128 : Ll128 {
  static constexpr bool kWhole = true;
  static __device__ __forceinline__ void load(const Span& from, u32 step, u32 lane, u64 (&w)[2]) {
    const u64 at = 8 * first_word(step, lane);
    Pair p{0, 0};
    if (at < from.bytes && last(lane)) p.a = *reinterpret_cast<const u64*>(from.data + at);
    if (at < from.bytes && !last(lane)) p = ld_stream(from.data + at);
    w[0] = p.a;
    w[1] = p.b;
  }
  static __device__ __forceinline__ void store(const Span& to, u32 step, u32 lane,
                                               const u64 (&w)[2]) {
    const u64 at = 8 * first_word(step, lane);
    if (at < to.bytes && last(lane)) *reinterpret_cast<u64*>(to.data + at) = w[0];
    if (at < to.bytes && !last(lane)) st_stream(to.data + at, {w[0], w[1]});
  }
};
__device__ __forceinline__ bool whole_pairs(const Job& job) {
  return ((reinterpret_cast<u64>(job.in) | reinterpret_cast<u64>(job.out) | job.bytes) & 15) == 0 &&
         job.bytes >> 31 == 0;
}

// Each lane has a pair.
struct Lamport {
  using Tensor = Span;
  static constexpr bool kFlags = false, kWhole = false;
  static constexpr int kSlots = kLamportTurn;
  static constexpr int kWords = 2;
  static constexpr int kStepWords = 64;
  static constexpr u32 kEmpty = 0xffffffffu;     // the last word of an empty slot
  static constexpr u32 kUsualNan = 0x7fff7fffu;  // of every type of float; sent in its place

  static __device__ constexpr u64 begin(const Places& at) { return at.lamport; }
  static __device__ __forceinline__ u64* numbers(Control* c) { return c->lamport_number; }
  static __device__ __forceinline__ void load(const Span& from, u32 step, u32 lane, u64 (&w)[2]) {
    unpack(from.pair(u64{step} * 32 + lane), w);
  }
  static __device__ __forceinline__ void store(const Span& to, u32 step, u32 lane,
                                               const u64 (&w)[2]) {
    to.set_pair(u64{step} * 32 + lane, {w[0], w[1]});
  }
  static __device__ __forceinline__ Pair pack(const u64 (&w)[2], u64, u32) {
    const u32 last = upper_half(w[1]);
    return {w[0], u64{last == kEmpty ? kUsualNan : last} << 32 | static_cast<u32>(w[1])};
  }
  static __device__ __forceinline__ void unpack(Pair p, u64 (&w)[2]) {
    w[0] = p.a;
    w[1] = p.b;
  }
  static __device__ __forceinline__ bool ready(Pair p, u64, u32) {
    return upper_half(p.b) != kEmpty;
  }
  static __device__ __forceinline__ u64 flag_of(Pair, u32) { return 0; }
  // The word of a slot that says whether it is empty.
  static __device__ __forceinline__ const u32* mark_of(const u8* slot) {
    return reinterpret_cast<const u32*>(slot + 12);
  }
};

// The same for tensors of whole pairs.
struct WholeLamport : Lamport {
  using Tensor = Pairs;
  static constexpr bool kWhole = true;
  static __device__ __forceinline__ void load(const Pairs& from, u32 step, u32, u64 (&w)[2]) {
    unpack(from.pair(step), w);
  }
  static __device__ __forceinline__ void store(const Pairs& to, u32 step, u32, const u64 (&w)[2]) {
    to.set_pair(step, {w[0], w[1]});
  }
};

// How a protocol sees a tensor.
template <class P>
using TensorOf = typename P::Tensor;

// This lane's words of one step.
template <class P>
struct Words {
  u64 w[P::kWords];

  static __device__ __forceinline__ Words load(const TensorOf<P>& from, u32 step) {
    Words words;
    P::load(from, step, threadIdx.x & 31, words.w);
    return words;
  }
  __device__ __forceinline__ void store(const TensorOf<P>& to, u32 step) const {
    P::store(to, step, threadIdx.x & 31, w);
  }
};

// Those of a transfer's steps that one channel moves: every `stride`-th from `first`, up to `end`.
struct Steps {
  u32 first, stride, end;

  __device__ __forceinline__ u32 operator[](int i) const { return first + i * stride; }
  __device__ __forceinline__ bool has(int i) const { return (*this)[i] < end; }
  // How many of two at most, or one, there are from the i-th on, which is there.
  template <int kMax>
  __device__ __forceinline__ int in_round(int i) const {
    static_assert(kMax <= 2, "two at most");
    return kMax == 2 && has(i + 1) ? 2 : 1;
  }
};

}  // namespace commlib
