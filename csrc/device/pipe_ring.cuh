// Rings of shared memory through which tiles go: into pipes, and out of them.
#pragma once

#include "device/pipe.cuh"

namespace commlib {

// Who runs a ring. Where all tiles are aligned one thread does: the engine copies them, but for the
// last bytes of a tensor.
template <bool kPlain>
struct Hand {
  static __device__ __forceinline__ bool leads() { return true; }
  static __device__ __forceinline__ void sync() {}
  static __device__ __forceinline__ bool agrees(bool yes) { return yes; }
  static __device__ __forceinline__ Ring roomy(const Ring& ring) { return ring; }
  // A tile of a tensor into shared memory; the barrier expects `more` bytes of other copies.
  static __device__ __forceinline__ void load(u8* to, const Tile& tile, u32 more, u64* barrier) {
    expect_bytes(tile.pairs() * 16 + more, barrier);
    bulk_copy(to, tile.data, tile.pairs() * 16, barrier);
  }
  static __device__ __forceinline__ void settle(u8*, const Tile&) {}
  static __device__ __forceinline__ Pair pair(const u8* entry, u32 i, const Tile&) {
    return reinterpret_cast<const Pair*>(entry)[i];
  }
  static __device__ __forceinline__ void store(const Tile& tile, const u8* from) {
    const u32 whole = tile.bytes / 16 * 16;
    if (whole > 0) bulk_store(tile.data, from, whole);
    for (u32 b = whole; b < tile.bytes; ++b) tile.data[b] = from[b];
  }
};

// Else all lanes of a warp do. The engine copies the aligned pairs that a tile lies in; the lanes
// move it to the beginning of its entry, and write it to a tensor.
template <>
struct Hand<false> {
  static constexpr int kBatch = 4;  // pairs of a lane at once
  static __device__ __forceinline__ u32 lane() { return threadIdx.x & 31; }
  static __device__ __forceinline__ bool leads() { return lane() == 0; }
  static __device__ __forceinline__ void sync() { __syncwarp(); }
  // Lanes do not see the same at the same time: the first one decides for all.
  static __device__ __forceinline__ bool agrees(bool yes) {
    return __shfl_sync(0xffffffffu, yes, 0);
  }
  // Entries with room for the pairs that a tile lies in.
  static __device__ __forceinline__ Ring roomy(Ring ring) {
    constexpr u32 kRoom = 128;
    ring.entries = ring.entries * ring.entry_bytes / (ring.entry_bytes + kRoom);
    ring.entry_bytes += kRoom;
    return ring;
  }
  static __device__ __forceinline__ u32 skew_of(const Tile& tile) {
    return reinterpret_cast<u64>(tile.data) & 15;
  }
  static __device__ __forceinline__ void load(u8* to, const Tile& tile, u32 more, u64* barrier) {
    if (!leads()) return;
    const u32 skew = skew_of(tile), bytes = (skew + tile.bytes + 15) / 16 * 16;
    expect_bytes(bytes + more, barrier);
    bulk_copy(to, tile.data - skew, bytes, barrier);
  }
  static __device__ __forceinline__ Pair pair(const u8* entry, u32 i, const Tile& tile) {
    return gather_pair(entry + skew_of(tile) + 16 * i, 16);
  }
  static __device__ __forceinline__ void settle(u8* entry, const Tile& tile) {
    const u32 pairs = tile.pairs();
    if (skew_of(tile) == 0) return;
    for (u32 begin = 0; begin < pairs; begin += 32 * kBatch) {
      Pair v[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (begin + 32 * b + lane() < pairs) v[b] = pair(entry, begin + 32 * b + lane(), tile);
      __syncwarp();  // the next pair of the last lane is not written yet
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (begin + 32 * b + lane() < pairs)
          reinterpret_cast<Pair*>(entry)[begin + 32 * b + lane()] = v[b];
    }
    fence_shared_async();
    __syncwarp();
  }
  // In the tensor's own pairs, but for the bytes of its first and last one.
  static __device__ __forceinline__ void store(const Tile& tile, const u8* from) {
    const u32 skew = skew_of(tile), end = skew + tile.bytes;
    u8* const first = tile.data - skew;
    for (u32 at = 16 * lane(); at < end; at += 16 * 32) {
      if (at >= skew && at + 16 <= end) {
        st_stream(first + at, gather_pair(from + at - skew, 16));
      } else {
        const u32 begin = at < skew ? skew : at, stop = at + 16 < end ? at + 16 : end;
        for (u32 b = begin; b < stop; ++b) first[b] = from[b - skew];
      }
    }
    __syncwarp();
  }
};

// Waits until all copies of this thread but the newest `n` are written; n is 1, 2, 4 or 8.
__device__ __forceinline__ void await_written_but(u32 n) {
  if (n == 1) await_written<1>();
  if (n == 2) await_written<2>();
  if (n == 4) await_written<4>();
  if (n == 8) await_written<8>();
}
// As many as fill the link together with those of the other blocks; a short call rather tells its
// peers early.
__device__ __forceinline__ u32 unwritten_of(u32 items, u32 tile_bytes) {
  const u32 suited = items >= 32 ? kMaxUnwritten : items >= 16 ? 4 : items >= 8 ? 2 : 1;
  u32 filling = kMaxUnwritten;
  while (filling > 1 && filling * tile_bytes * gridDim.x > kInFlight) filling /= 2;
  return suited < filling ? suited : filling;
}

// Moves tiles through a ring, in order: `ask` begins to fill an entry, `loaded` is called when it
// is full, `give` begins to empty it; `written` gets how many have arrived. Where `may_ask` or
// `may_give` says no, it looks again. kUnread: copies out of the ring that may still read it.
template <bool kPlain, int kUnread, int N, class Actor>
__device__ __forceinline__ void run_ring(const Pipes<N>& pipes, const Ring& ring, u32 items,
                                         Actor& actor) {
  using By = Hand<kPlain>;
  const u32 unwritten = unwritten_of(items, pipes.tile_bytes());
  u32 asked = 0, loaded = 0, done = 0;
  Entry next, oldest;
  const auto flush = [&] {
    if (By::leads()) await_written<0>();
    By::sync();
    actor.written(done);
  };
  while (done < items) {
    while (asked < items && asked - done < ring.entries - kUnread && By::agrees(actor.may_ask())) {
      actor.ask(next.memory(ring), next.barrier(ring));
      next.next(ring);
      ++asked;
    }
    if (loaded == done && loaded < asked) {
      await_bytes(oldest.barrier(ring), oldest.phase);
      actor.loaded();
      ++loaded;
    }
    if (loaded == done || !By::agrees(actor.may_give(oldest))) {
      if (By::agrees(pipes.over())) break;
      if (Actor::kPosts) flush();
      continue;
    }
    actor.give(oldest.memory(ring), oldest);
    oldest.next(ring);
    ++done;
    if (By::leads()) {
      bulk_commit();
      await_read<kUnread>();
      if (Actor::kPosts) await_written_but(unwritten);
    }
    By::sync();
    if (Actor::kPosts && done > unwritten) actor.written(done - unwritten);
  }
  // No copy may outlive the block whose memory it uses.
  if (loaded > done) oldest.next(ring);
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
    const Tile tile = from_(gives_.peer(), gives_.offset());
    Hand<kPlain>::settle(entry, tile);
    if (is_own(gives_)) {
      Hand<kPlain>::store(own_(gives_.offset()), entry);
    } else if (Hand<kPlain>::leads()) {
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
    if (done_ >= allowed_) allowed_ = pipes_.allowed(kWritten, kScatter);
    return done_ < allowed_;
  }
  __device__ void give(u8* entry, const Entry&) {
    const Tile tile = from_(offset_);
    Hand<kPlain>::settle(entry, tile);
#pragma unroll
    for (int k = 0; k < N - 1; ++k)
      if (Hand<kPlain>::leads() && gets(k, done_))
        bulk_store(pipes_.slot_at(kScatter, pipes_.peer(k), done_), entry, tile.pairs() * 16);
    if (keeps_) Hand<kPlain>::store(own_(offset_), entry);
    offset_ += pipes_.stride();
    ++done_;
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
  u32 done_ = 0, allowed_ = 0;
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
