// Packets: data that carries its own flag, so that a reader needs no barrier and a writer no fence.
//
//   LL      16 bytes: 8 of data, 8 of flag        half the wire, the smallest unit
//   LL128   128 bytes: 120 of data, 8 of flag     15/16 of the wire; a warp writes a line at once
//
// A channel is one warp of the grid and the same warp on every peer. Its packets are numbered
// through the life of the communicator, and a packet lies in slot number % (2 * kAhead). Every
// kernel keeps one rule: number q is sent when all up to q - kAhead were taken from every peer. The
// peer that sent those had taken all up to q - 2 * kAhead, so the slot was read.
//
// The flag is the number and, below it, the call's signature: a peer in another call is noticed.
// Numbers have 48 bits, lie in Control and survive the kernel, so graphs replay. LL and LL128 have
// memory of their own: a flag is only ever overwritten by a flag.
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
  return ((reinterpret_cast<u64>(job.in) | reinterpret_cast<u64>(job.out) | job.bytes) & 15) == 0;
}

// This lane's words of one step.
template <class P>
struct Words {
  u64 w[P::kWords];

  static __device__ __forceinline__ Words load(const Span& from, u32 step) {
    Words words;
    P::load(from, step, threadIdx.x & 31, words.w);
    return words;
  }
  __device__ __forceinline__ void store(const Span& to, u32 step) const {
    P::store(to, step, threadIdx.x & 31, w);
  }
};

// Those of a transfer's steps that one channel moves: every `stride`-th from `first`, up to `end`.
struct Steps {
  u32 first, stride, end;

  __device__ __forceinline__ u32 operator[](int i) const { return first + i * stride; }
  __device__ __forceinline__ bool has(int i) const { return (*this)[i] < end; }
};

template <class P, int N>
class Channel {
 public:
  __device__ explicit Channel(const Job& job, bool lets_next_start = true)
      : job_(job),
        id_((threadIdx.x >> 5) * gridDim.x + blockIdx.x),
        lane_(threadIdx.x & 31),
        next_(0) {
    begin_marked();
    if (lets_next_start && job.first) let_next_start();
    next_ = P::numbers(control_of(job, job.rank))[id_] + 1;
  }

  __device__ int rank() const { return job_.rank; }

  // This channel's steps of `bytes`.
  __device__ __forceinline__ Steps steps(u64 bytes) const {
    constexpr u64 kStepBytes = 8 * P::kStepWords;
    return {id_, gridDim.x * (blockDim.x >> 5),
            static_cast<u32>((bytes + kStepBytes - 1) / kStepBytes)};
  }

  // The call has used `n` numbers, which outlives the kernel.
  __device__ void close(int n) {
    if (lane_ == 0) P::numbers(control_of(job_, job_.rank))[id_] = next_ + n - 1;
    if (threadIdx.x == 0) count_call(job_);
    mark(Phase::over);
  }

  // `i` counts the numbers of this call.
  __device__ __forceinline__ void send(int peer, int i, const Words<P>& words) const {
    st_relaxed_sys(job_.arena[peer] + place(next_ + i, job_.rank),
                   P::pack(words.w, flag_of(i), lane_));
  }
  __device__ __forceinline__ void send_all(int i, const Words<P>& words) const {
    mark(Phase::publish);
#pragma unroll
    for (int p = 1; p < N; ++p) send(after(p), i, words);
  }

  // The words of number `i` from every peer p that sent it, `sent(p)`; others stay as they were.
  // False: the call is over.
  template <class Sent>
  __device__ __forceinline__ bool receive(int i, Words<P> (&words)[kPeers<N>], Sent sent) const {
    mark(Phase::wait);
    const u64 expected = flag_of(i);
    Pair got[kPeers<N>];
    Patience patience;
    while (true) {
#pragma unroll
      for (int p = 0; p < N - 1; ++p)
        if (sent(p)) got[p] = look(i, p);
      bool ready = true;
#pragma unroll
      for (int p = 0; p < N - 1; ++p)
        if (sent(p)) ready &= P::ready(got[p], expected, lane_);
      if (__all_sync(kAll, ready)) break;
      if (!patience.runs_out()) continue;
      bool leave = false;
#pragma unroll
      for (int p = 0; p < N - 1; ++p) {
        const u64 seen = P::flag_of(got[p], lane_);
        if (sent(p) && seen != expected) leave |= patience.gives_up(job_, peer(p), seen, expected);
      }
      if (__any_sync(kAll, leave)) return false;
    }
#pragma unroll
    for (int p = 0; p < N - 1; ++p)
      if (sent(p)) P::unpack(got[p], words[p].w);
    if (!job_.first) let_next_start();
    mark(Phase::copy);
    return true;
  }
  __device__ __forceinline__ bool receive(int i, Words<P> (&words)[kPeers<N>]) const {
    return receive(i, words, [](int) { return true; });
  }
  // What this lane sees at number i of the p-th peer, and the flag that it hopes for.
  __device__ __forceinline__ Pair look(int i, int p) const {
    return ld_relaxed_sys(job_.arena[job_.rank] + place(next_ + i, peer(p)));
  }
  __device__ __forceinline__ u64 flag_of(int i) const {
    return (next_ + i) << kSignatureBits | job_.signature;
  }
  // The i-th rank but this one.
  __device__ __forceinline__ int peer(int i) const { return i < job_.rank ? i : i + 1; }
  // Rank i places after this one.
  __device__ __forceinline__ int after(int i) const {
    const int r = job_.rank + i;
    return r < N ? r : r - N;
  }

 private:
  __device__ __forceinline__ u64 place(u64 number, int source) const {
    constexpr u64 begin = P::begin(places(N));
    const u64 slot = (u64(source) * kChannels + id_) * (2 * kAhead) + number % (2 * kAhead);
    return begin + slot * kWarpPackets + lane_ * 16;
  }
  const Job& job_;
  u32 id_, lane_;
  u64 next_;
};

}  // namespace commlib
