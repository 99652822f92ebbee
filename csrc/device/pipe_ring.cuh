// Rings of shared memory through which tiles go: into pipes, and out of them.
#pragma once

#include "device/pipe.cuh"

namespace commlib {

// Who runs a ring: one thread where all tiles consist of aligned pairs, else all lanes of a warp,
// which copy between the tensors and shared memory themselves.
template <bool kPlain>
struct Hand {
  static __device__ __forceinline__ bool leads() { return kPlain || (threadIdx.x & 31) == 0; }
  static __device__ __forceinline__ void sync() {
    if (!kPlain) __syncwarp();
  }
  // A tile of a tensor into shared memory; the barrier expects `more` bytes of other copies.
  static __device__ __forceinline__ void load(u8* to, const Tile& tile, u32 more, u64* barrier) {
    if (kPlain) {
      expect_bytes(tile.bytes + more, barrier);
      return bulk_copy(to, tile.data, tile.bytes, barrier);
    }
    const Span from(tile.data, tile.bytes);
    for (u32 i = threadIdx.x & 31; i < tile.pairs(); i += 32)
      reinterpret_cast<Pair*>(to)[i] = from.pair(i);
    fence_shared_async();
    __syncwarp();
    if (leads()) expect_bytes(more, barrier);
  }
  static __device__ __forceinline__ void store(const Tile& tile, const u8* from) {
    if (kPlain) return bulk_store(tile.data, from, tile.bytes);
    const Span to(tile.data, tile.bytes);
    for (u32 i = threadIdx.x & 31; i < tile.pairs(); i += 32)
      to.set_pair(i, reinterpret_cast<const Pair*>(from)[i]);
    fence_shared_async();
    __syncwarp();
  }
};

// Whether all that is moved consists of aligned pairs.
template <int N>
__device__ __forceinline__ bool is_plain(const Job& job, const Moves& moves) {
  u64 all = reinterpret_cast<u64>(job.in) | reinterpret_cast<u64>(job.out);
#pragma unroll
  for (int r = 0; r < N; ++r)
    all |= moves.send_at[r] | moves.send_bytes[r] | moves.take_at[r] | moves.take_bytes[r];
  return (all & 15) == 0;
}

// Waits until all copies of this thread but the newest `n` are written; n is 1, 2, 4 or 8.
__device__ __forceinline__ void await_written_but(u32 n) {
  if (n == 1) await_written<1>();
  if (n == 2) await_written<2>();
  if (n == 4) await_written<4>();
  if (n == 8) await_written<8>();
}
// As many as fill the link; a short call rather tells its peers early.
__device__ __forceinline__ u32 unwritten_of(u32 items) {
  return items >= 32 ? kMostUnwritten : items >= 16 ? 4 : items >= 8 ? 2 : 1;
}

// Moves tiles through a ring, in order: `ask` begins to fill an entry, `loaded` is told that it is
// full, `give` begins to empty it; `written` learns how many have come to where they were given.
// Where `may_ask` or `may_give` says no, it looks again. kUnread: copies out of the ring that may
// still read it.
template <bool kPlain, int kUnread, int N, class Actor>
__device__ __forceinline__ void run_ring(const Pipes<N>& pipes, const Ring& ring, u32 items,
                                         Actor& actor) {
  using By = Hand<kPlain>;
  const u32 unwritten = unwritten_of(items);
  u32 asked = 0, loaded = 0, given = 0;
  Entry next, oldest;
  const auto flush = [&] {
    if (By::leads()) await_written<0>();
    By::sync();
    actor.written(given);
  };
  while (given < items) {
    while (asked < items && asked - given < ring.entries - kUnread && actor.may_ask()) {
      actor.ask(next.memory(ring), next.barrier(ring));
      next.next(ring);
      ++asked;
    }
    if (loaded == given && loaded < asked) {
      await_bytes(oldest.barrier(ring), oldest.phase);
      actor.loaded();
      ++loaded;
    }
    if (loaded == given || !actor.may_give(oldest)) {
      if (pipes.over()) break;
      if (Actor::kPosts) flush();
      continue;
    }
    actor.give(oldest.memory(ring), oldest);
    oldest.next(ring);
    ++given;
    if (By::leads()) {
      bulk_commit();
      await_read<kUnread>();
      if (Actor::kPosts) await_written_but(unwritten);
    }
    By::sync();
    if (Actor::kPosts && given > unwritten) actor.written(given - unwritten);
  }
  // No copy may outlive the block whose memory it uses.
  if (loaded > given) oldest.next(ring);
  for (; loaded < asked; ++loaded, oldest.next(ring))
    await_bytes(oldest.barrier(ring), oldest.phase);
  flush();
}

// The tiles for each of several peers, step by step; peers may have different numbers of them.
template <int N>
class Cursor {
 public:
  // In this block's order, this rank itself at last; `steps(peer)` of each.
  template <class Steps>
  __device__ Cursor(const Pipes<N>& pipes, Steps steps)
      : pipes_(pipes), offset_(pipes.first()), stride_(pipes.stride()) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      steps_[k] = steps(peer_of(k));
      items_ += steps_[k];
    }
    if (items_ > 0) settle();
  }
  __device__ u32 items() const { return items_; }
  __device__ u32 step() const { return step_; }
  __device__ u64 offset() const { return offset_; }
  __device__ int peer() const { return peer_of(k_); }
  __device__ void next() {
    if (++passed_ == items_) return;
    ++k_;
    settle();
  }

 private:
  __device__ int peer_of(int k) const { return k < N - 1 ? pipes_.peer(k) : pipes_.rank(); }
  __device__ void settle() {
    while (true) {
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k >= k_ && step_ < steps_[k]) {
          k_ = k;
          return;
        }
      k_ = 0;
      ++step_;
      offset_ += stride_;
    }
  }

  const Pipes<N>& pipes_;
  u64 offset_, stride_;
  u32 steps_[N];
  u32 items_ = 0, passed_ = 0, step_ = 0;
  int k_ = 0;
};

// Fills the pipes of the first stage: `from(peer, offset)` is the tile for a peer; what of it this
// rank keeps goes to `own(offset)`.
template <bool kPlain, int N, class From, class Own>
class Sender {
 public:
  static constexpr bool kPosts = true;
  __device__ Sender(const Pipes<N>& pipes, const Cursor<N>& items, From from, Own own)
      : pipes_(pipes), asks_(items), gives_(items), writes_(items), from_(from), own_(own) {}

  __device__ bool may_ask() const { return true; }
  __device__ void ask(u8* entry, u64* barrier) {
    Hand<kPlain>::load(entry, from_(asks_.peer(), asks_.offset()), 0, barrier);
    asks_.next();
  }
  __device__ void loaded() { pipes_.tell_loaded(gives_.peer(), gives_.step() + 1); }
  __device__ bool may_give(const Entry&) {
    if (gives_.step() < allowed_ || is_own(gives_)) return true;
    allowed_ = pipes_.allowed(kWritten, kScatter);
    return gives_.step() < allowed_;
  }
  __device__ void give(u8* entry, const Entry&) {
    if (is_own(gives_)) {
      Hand<kPlain>::store(own_(gives_.offset()), entry);
    } else if (Hand<kPlain>::leads()) {
      const Tile tile = from_(gives_.peer(), gives_.offset());
      bulk_store(pipes_.slot_at(kScatter, gives_.peer(), gives_.step()), entry, tile.pairs() * 16);
    }
    gives_.next();
  }
  __device__ void written(u32 all) {
    for (; written_ < all; ++written_, writes_.next())
      if (!is_own(writes_)) pipes_.tell(kWritten, kScatter, writes_.peer(), writes_.step() + 1);
  }

 private:
  __device__ bool is_own(const Cursor<N>& at) const { return at.peer() == pipes_.rank(); }

  const Pipes<N>& pipes_;
  Cursor<N> asks_, gives_, writes_;
  u32 written_ = 0, allowed_ = 0;
  From from_;
  Own own_;
};

// The same where all peers, and this rank's own place, get one tile: it is loaded once.
template <bool kPlain, int N, class From, class Own>
class Spreader {
 public:
  static constexpr bool kPosts = true;
  __device__ Spreader(const Pipes<N>& pipes, bool keeps, From from, Own own)
      : pipes_(pipes),
        keeps_(keeps),
        asked_(pipes.first()),
        offset_(pipes.first()),
        from_(from),
        own_(own) {}

  __device__ bool may_ask() const { return true; }
  __device__ void ask(u8* entry, u64* barrier) {
    Hand<kPlain>::load(entry, from_(asked_), 0, barrier);
    asked_ += pipes_.stride();
  }
  __device__ void loaded() {}
  __device__ bool may_give(const Entry&) {
    if (given_ >= allowed_) allowed_ = pipes_.allowed(kWritten, kScatter);
    return given_ < allowed_;
  }
  __device__ void give(u8* entry, const Entry&) {
    const u32 bytes = from_(offset_).pairs() * 16;
#pragma unroll
    for (int k = 0; k < N - 1; ++k)
      if (Hand<kPlain>::leads() && gets(k, given_))
        bulk_store(pipes_.slot_at(kScatter, pipes_.peer(k), given_), entry, bytes);
    if (keeps_) Hand<kPlain>::store(own_(offset_), entry);
    offset_ += pipes_.stride();
    ++given_;
  }
  __device__ void written(u32 all) {
#pragma unroll
    for (int k = 0; k < N - 1; ++k)
      if (all > 0 && gets(k, all - 1)) pipes_.tell(kWritten, kScatter, pipes_.peer(k), all);
  }

 private:
  __device__ bool gets(int k, u32 step) const {
    return pipes_.goal(kWritten, kScatter, pipes_.peer(k)) > step;
  }

  const Pipes<N>& pipes_;
  bool keeps_;
  u64 asked_, offset_;
  u32 given_ = 0, allowed_ = 0;
  From from_;
  Own own_;
};

// Takes what comes through the pipes of a stage: `to(peer, offset)` is the place of a tile. If
// `waits`, the sender has to have read what lies there.
template <bool kPlain, int N, class To>
class Taker {
 public:
  static constexpr bool kPosts = false;
  __device__ Taker(const Pipes<N>& pipes, Stage stage, bool waits, const Cursor<N>& items, To to)
      : pipes_(pipes), stage_(stage), waits_(waits), asks_(items), gives_(items), to_(to) {}

  __device__ bool may_ask() {
    if (asks_.step() < allowed_) return true;
    mark(Phase::wait);
    allowed_ = pipes_.allowed(kTaken, stage_);
    mark(Phase::copy);
    return asks_.step() < allowed_;
  }
  __device__ void ask(u8* entry, u64* barrier) {
    if (Hand<kPlain>::leads()) {
      const Tile tile = to_(asks_.peer(), asks_.offset());
      bulk_load(entry, pipes_.slot_from(stage_, asks_.peer(), asks_.step()), tile.pairs() * 16,
                barrier);
    }
    asks_.next();
  }
  __device__ void loaded() { pipes_.tell(kTaken, stage_, gives_.peer(), gives_.step() + 1); }
  __device__ bool may_give(const Entry&) const {
    return !waits_ || pipes_.is_loaded(gives_.peer(), gives_.step());
  }
  __device__ void give(u8* entry, const Entry&) {
    Hand<kPlain>::store(to_(gives_.peer(), gives_.offset()), entry);
    gives_.next();
  }
  __device__ void written(u32) {}

 private:
  const Pipes<N>& pipes_;
  Stage stage_;
  bool waits_;
  Cursor<N> asks_, gives_;
  u32 allowed_ = 0;
  To to_;
};

}  // namespace commlib
