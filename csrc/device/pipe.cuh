// Large data through few blocks: queues of tiles, so deep that a block keeps its share of the link
// full while the others of the GPU compute.
//
// A pipe leads from a block to the same block of a peer: pipe_slots(N) slots in the peer's arena
// that take turns. The number of tiles written there is posted to the peer, and the number of those
// taken is posted back: a block sends ahead until the slots are full. Each pipe counts for itself,
// from call to call, so calls need no barrier between them and ranks need not send alike.
//
//   movers    take tiles out of their slots, or reduce them; the first warp handles all copies
//   watcher   sees what peers have posted
//   poster    posts what was written and taken: no copy waits for its fences
//   sender    fills the pipes
//   gatherer  in a call of two stages: takes the tiles of the second
//
// Sender, gatherer and first mover each own a ring of shared memory that the bulk copy engine fills
// and empties (run_ring). A tile takes such a warp a third of a microsecond, so its loop is short.
#pragma once

#include "device/bulk_copy.cuh"
#include "device/tiles.cuh"

namespace commlib {

enum Way { kWritten, kTaken };  // what is posted of a pipe

constexpr u32 kPipeShared = 13;    // slots of shared memory that the rings have together
constexpr u32 kMostEntries = 32;   // of a ring
constexpr u32 kMostUnwritten = 8;  // copies to peers that a warp has on their way
constexpr int kPipeThreads = 384;  // at most: more leave too few registers

extern "C" {
__device__ u8 commlib_shared_slots[kPipeShared];
}

// Words of both ways, both stages, all peers: one for each lane of a warp.
struct PipeWords {
  u32 word[2][kStages][kMaxPeers];
};

// What a block's warps tell each other. Tiles are counted from the beginning of the call.
struct PipeBoard {
  u64 before[2][kStages][kMaxPeers];
  u64 full[kStages + 1][kMostEntries];  // of the rings: mover's, sender's, gatherer's
  PipeWords goal;                       // tiles that this block writes to a peer, takes from it
  PipeWords told;                       // those that it has written, taken
  PipeWords seen;                       // tiles that a peer lets it write, take
  u32 signature[2][kStages][kMaxPeers];
  u32 loaded[kMaxPeers];      // tiles for a peer that the sender has read
  u32 reduced[kMostEntries];  // warps that are done with an entry
  u32 over;                   // the call has failed: all leave
};

// Entries of shared memory that a warp fills and empties in turn.
struct Ring {
  u8* memory;
  u64* full;
  u32 entries, entry_bytes;
};

// One of them, and which time it comes.
struct Entry {
  u32 at = 0, phase = 0;

  __device__ void next(const Ring& ring) {
    if (++at < ring.entries) return;
    at = 0;
    phase ^= 1;
  }
  __device__ u8* memory(const Ring& ring) const { return ring.memory + at * ring.entry_bytes; }
  __device__ u64* barrier(const Ring& ring) const { return ring.full + at; }
};

// What lies in a tensor and travels as one.
struct Tile {
  u8* data;
  u32 bytes;

  __device__ u32 pairs() const { return (bytes + 15) / 16; }
};

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

template <int N>
class Pipes {
 public:
  static constexpr u64 kPipeSlots = pipe_slots(N);

  // `bytes(way, stage, peer)`: what this rank writes to a peer, or takes from it.
  template <class Bytes>
  __device__ Pipes(const Job& job, PipeBoard* board, u32 tile_bytes, Bytes bytes)
      : job_(job), board_(board), tile_bytes_(tile_bytes) {
    begin_marked();
    for (u32 i = threadIdx.x; i < sizeof(PipeBoard) / sizeof(u32); i += blockDim.x)
      reinterpret_cast<u32*>(board)[i] = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
      const int way = way_of(), stage = stage_of(), peer = peer_of();
      const bool is_peer = peer < N && peer != job.rank;
      const u64 all = is_peer ? bytes(static_cast<Way>(way), static_cast<Stage>(stage), peer) : 0;
      board->goal.word[way][stage][peer] = static_cast<u32>(tiles(all).steps());
      board->signature[way][stage][peer] = signature_of(all);
      board->before[way][stage][peer] = block_of(job.rank)->before[way][stage][peer];
    }
    for (u32 i = threadIdx.x; i < (kStages + 1) * kMostEntries; i += blockDim.x)
      barrier_init(&board->full[0][0] + i);
    fence_shared_async();
    __syncthreads();
  }

  // Runs `move` on the movers and each of the others on a warp of its own; a ring by one thread of
  // a warp if kPlain.
  template <bool kPlain, class Move, class Send, class Gather>
  __device__ __forceinline__ void run(Move move, Send send, Gather gather) const {
    const u32 movers = TileChannel<N>::movers(), helper = (threadIdx.x - movers) / 32;
    const bool runs_ring = !kPlain || (threadIdx.x & 31) == 0;
    if (threadIdx.x < movers) {
      if (runs_ring || threadIdx.x >= 32) move();
    } else if (helper == 0) {
      watch();
    } else if (helper == 1) {
      post();
    } else if (runs_ring && helper == 2) {
      send();
    } else if (runs_ring) {
      gather();
    }
    mark(Phase::wait);
    __syncthreads();
    mark(Phase::over);
    if (threadIdx.x < 32)
      block_of(job_.rank)->before[way_of()][stage_of()][peer_of()] =
          before(way_of(), stage_of(), peer_of()) + goal(way_of(), stage_of(), peer_of());
    if (threadIdx.x == 0) count_call(job_);
  }

  __device__ Tiles tiles(u64 bytes) const { return {bytes, tile_bytes_}; }
  __device__ Tile tile(const u8* tensor, u64 bytes, u64 offset) const {
    const u64 left = bytes - offset;
    return {const_cast<u8*>(tensor) + offset,
            left < tile_bytes_ ? static_cast<u32>(left) : tile_bytes_};
  }
  // Of this block's tiles in any tensor: where the first begins, and how far it is to the next.
  __device__ u64 first() const { return u64{blockIdx.x} * tile_bytes_; }
  __device__ u64 stride() const { return u64{gridDim.x} * tile_bytes_; }
  __device__ u32 tile_bytes() const { return tile_bytes_; }
  __device__ int rank() const { return job_.rank; }
  __device__ bool over() const { return look(&board_->over) != 0; }
  __device__ u32 goal(int way, int stage, int peer) const {
    return board_->goal.word[way][stage][peer];
  }
  // Up to which step all peers let this block write, or take, what there is for them.
  __device__ u32 allowed(Way way, Stage stage) const {
    u32 least = ~0u;
#pragma unroll
    for (int k = 0; k < N - 1; ++k) {
      const u32 seen = look(&board_->seen.word[way][stage][peer(k)]);
      if (seen < goal(way, stage, peer(k)) && seen < least) least = seen;
    }
    return least;
  }
  __device__ void tell(Way way, Stage stage, int peer, u32 steps) const {
    say(&board_->told.word[way][stage][peer], steps);
  }
  __device__ void tell_loaded(int peer, u32 steps) const { say(&board_->loaded[peer], steps); }
  __device__ bool is_loaded(int peer, u32 step) const { return look(&board_->loaded[peer]) > step; }
  // Warps that are done with an entry.
  __device__ u32* reduced(const Entry& entry) const { return &board_->reduced[entry.at]; }
  // Where this rank writes a tile at a peer; where it takes one from.
  __device__ u8* slot_at(Stage stage, int peer, u32 step) const {
    return slot(stage, peer, job_.rank, before(kWritten, stage, peer) + step);
  }
  __device__ u8* slot_from(Stage stage, int peer, u32 step) const {
    return slot(stage, job_.rank, peer, before(kTaken, stage, peer) + step);
  }
  // The k-th peer in this block's order: what all blocks send at a time is for all.
  __device__ int peer(int k) const {
    constexpr int kPeers = N > 1 ? N - 1 : 1;
    return (job_.rank + 1 + (k + static_cast<int>(blockIdx.x)) % kPeers) % N;
  }

  // Rings of so many entries, one after the other in shared memory.
  __device__ Ring ring(int i, u32 entries, u32 entry_bytes, u32 at_bytes) const {
    extern __shared__ __align__(128) u8 shared[];
    return {shared + at_bytes, board_->full[i], entries, entry_bytes};
  }

  // Without fences, which would take longer than a tile: what a word tells of are copies by the
  // engine that whoever wrote it has awaited.
  static __device__ __forceinline__ u32 look(const u32* word) {
    return *const_cast<const volatile u32*>(word);
  }
  static __device__ __forceinline__ void say(u32* word, u32 value) {
    *const_cast<volatile u32*>(word) = value;
  }

 private:
  // A lane's word.
  static __device__ int way_of() { return (threadIdx.x & 31) / (kStages * kMaxPeers); }
  static __device__ int stage_of() { return (threadIdx.x & 31) / kMaxPeers % kStages; }
  static __device__ int peer_of() { return threadIdx.x % kMaxPeers; }

  __device__ u64 before(int way, int stage, int peer) const {
    return board_->before[way][stage][peer];
  }
  __device__ PipeBlock* block_of(int rank) const {
    return reinterpret_cast<PipeBlock*>(job_.arena[rank] + places(N).pipe_blocks) + blockIdx.x;
  }
  __device__ u8* slot(Stage stage, int at, int source, u64 number) const {
    constexpr u64 kPeers = N > 1 ? N - 1 : 1;
    const u64 pipe = (stage * kPipeBlocks + blockIdx.x) * kPeers + (source - at - 1 + N) % N;
    return job_.arena[at] + places(N).pipes +
           (pipe * kPipeSlots + number % kPipeSlots) * kSlotBytes;
  }
  // Of a pipe: both ends must mean the same bytes.
  __device__ u32 signature_of(u64 bytes) const {
    const u32 mixed = static_cast<u32>(bytes * 0x9e3779b97f4a7c15ull >> 48);
    return job_.signature ^ (mixed & ((1u << kSignatureBits) - 1));
  }

  __device__ void post() const {
    const int way = way_of(), stage = stage_of(), peer = peer_of();
    const u32 goal = this->goal(way, stage, peer);
    const u64 first = before(way, stage, peer);
    u64* word = &block_of(peer < N ? peer : 0)->posted[way][stage][job_.rank];
    u32 posted = 0;
    while (__any_sync(0xffffffffu, posted < goal)) {
      const bool leaves = over();
      const u32 now = look(&board_->told.word[way][stage][peer]);
      if (now != posted) {
        if (way == kWritten) fence_sys();  // what was taken has come: nothing is left to order
        st_relaxed_sys(word, (first + now) << kSignatureBits | board_->signature[way][stage][peer]);
        posted = now;
      }
      if (__any_sync(0xffffffffu, leaves)) return;
    }
  }

  // A lane sees tiles that a peer has written, or that it has taken: so many more it may be sent.
  __device__ void watch() const {
    const int lane = threadIdx.x & 31, stage = stage_of(), peer = peer_of();
    const Way seen_way = static_cast<Way>(way_of()),
              my_way = seen_way == kWritten ? kTaken : kWritten;
    const u32 goal = this->goal(my_way, stage, peer);
    const u64 first = before(my_way, stage, peer);
    const u64 room = seen_way == kTaken ? kPipeSlots : 0;
    const u64* posted = &block_of(job_.rank)->posted[seen_way][stage][peer];
    const u32 expected = board_->signature[my_way][stage][peer];
    Patience patience;
    u32 there = 0;
    while (true) {
      u64 seen = 0;
      bool foreign = false;
      const u32 had = there;
      if (there < goal) {
        seen = ld_acquire_sys(posted);
        const u64 number = seen >> kSignatureBits;
        const u64 come = number + room > first ? number + room - first : 0;
        there = come < goal ? static_cast<u32>(come) : goal;
        foreign = seen_way == kWritten && come > 0 && come <= goal &&
                  ((seen ^ expected) & ((1u << kSignatureBits) - 1)) != 0;
      }
      if (there != had && !foreign) {
        patience = Patience();
        fence_async();  // for the copies of whoever learns of it
        say(&board_->seen.word[my_way][stage][peer], there);
      }
      const u32 waiting = __ballot_sync(0xffffffffu, there < goal);
      // Who has not sent is to blame first; a peer that waits itself gathers nothing, and takes
      // nothing.
      const u32 first_stage = waiting & 0x000000ffu, any_stage = waiting & 0x0000ffffu;
      const u32 blamed = first_stage ? first_stage : any_stage ? any_stage : waiting;
      bool leaves = false;
      if (foreign) {
        leaves = patience.gives_up(job_, peer, seen,
                                   seen >> kSignatureBits << kSignatureBits | expected);
        there = had;
      } else if ((blamed >> lane & 1) != 0 && there == had && patience.runs_out()) {
        leaves = patience.gives_up(job_, peer, seen, seen);
      }
      if (__any_sync(0xffffffffu, leaves)) break;
      if (waiting == 0 && !__any_sync(0xffffffffu, foreign)) return;
    }
    say(&board_->over, 1);
  }

  const Job& job_;
  PipeBoard* board_;
  u32 tile_bytes_;
};

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

// Whether all that is moved consists of aligned pairs.
template <int N>
__device__ __forceinline__ bool is_plain(const Job& job, const Moves& moves) {
  u64 all = reinterpret_cast<u64>(job.in) | reinterpret_cast<u64>(job.out);
#pragma unroll
  for (int r = 0; r < N; ++r)
    all |= moves.send_at[r] | moves.send_bytes[r] | moves.take_at[r] | moves.take_bytes[r];
  return (all & 15) == 0;
}

// How a call that reduces deals out the shared memory: entries of N tiles to reduce, and of one
// that is sent, or gathered in a second stage. Many ranks' tiles have to be smaller for it.
template <int N, bool kReturns>
struct PipeRooms {
  static constexpr u32 kReducedAtLeast = 3, kSentAtLeast = 4, kGatheredAtLeast = kReturns ? 3 : 0;
  static constexpr u32 kLeast = N * kReducedAtLeast + kSentAtLeast + kGatheredAtLeast;
  static constexpr u32 kMostTile = kPipeShared * kSlotBytes / kLeast / 512 * 512;

  __device__ explicit PipeRooms(u32 wanted) : tile_bytes(wanted < kMostTile ? wanted : kMostTile) {
    const u32 tiles = kPipeShared * kSlotBytes / tile_bytes;
    const u32 most = (tiles - kSentAtLeast - kGatheredAtLeast) / N, wished = tiles * 5 / 8 / N;
    reduced_ = at_most(wished < kReducedAtLeast ? kReducedAtLeast : wished < most ? wished : most);
    const u32 left = tiles - N * reduced_;
    gathered_ = kReturns ? at_most(left * 3 / 7) : 0;
    sent_ = at_most(left - gathered_);
  }
  __device__ Ring reduced(const Pipes<N>& pipes) const {
    return pipes.ring(0, reduced_, N * tile_bytes, 0);
  }
  __device__ Ring sent(const Pipes<N>& pipes) const {
    return pipes.ring(1, sent_, tile_bytes, reduced_ * N * tile_bytes);
  }
  __device__ Ring gathered(const Pipes<N>& pipes) const {
    return pipes.ring(2, gathered_, tile_bytes, (reduced_ * N + sent_) * tile_bytes);
  }

  u32 tile_bytes;

 private:
  static __device__ u32 at_most(u32 entries) {
    return entries < kMostEntries ? entries : kMostEntries;
  }
  u32 reduced_, sent_, gathered_;
};

// Reduces everyone's tile for this rank, in rank order: `own(offset)` is its own, `to(offset)`
// the place of the result, which also goes to all peers if there is a second stage. An entry holds
// N tiles. This actor is the first warp of the movers; the others reduce.
template <bool kPlain, int N, bool kReturns, class Fold, class Own, class To>
class Reducer {
 public:
  static constexpr bool kPosts = kReturns;
  __device__ Reducer(const Pipes<N>& pipes, Fold fold, Own own, To to)
      : pipes_(pipes),
        asked_at_(pipes.first()),
        given_at_(pipes.first()),
        fold_(fold),
        own_(own),
        to_(to) {}

  // What the other warps do.
  __device__ __forceinline__ void assist(const Ring& ring, u32 items) const {
    Entry entry;
    u64 offset = pipes_.first();
    for (u32 i = 0; i < items; ++i, entry.next(ring), offset += pipes_.stride()) {
      while (!has_come(entry.barrier(ring), entry.phase))
        if (pipes_.over()) return;
      reduce(entry.memory(ring), own_(offset).pairs());
      fence_shared_async();
      __threadfence_block();
      __syncwarp();
      if ((threadIdx.x & 31) == 0) atomicAdd(pipes_.reduced(entry), 1u);
    }
  }

  __device__ bool may_ask() {
    if (asked_ < allowed_) return true;
    mark(Phase::wait);
    allowed_ = pipes_.allowed(kTaken, kScatter);
    mark(Phase::reduce);
    return asked_ < allowed_;
  }
  __device__ void ask(u8* entry, u64* barrier) {
    const Tile own = own_(asked_at_);
    const u32 bytes = own.pairs() * 16;
    Hand<kPlain>::load(part(entry, pipes_.rank()), own, (N - 1) * bytes, barrier);
    if (Hand<kPlain>::leads()) {
#pragma unroll
      for (int k = 0; k < N - 1; ++k) {
        const int peer = pipes_.peer(k);
        bulk_copy(part(entry, peer), pipes_.slot_from(kScatter, peer, asked_), bytes, barrier);
      }
    }
    ++asked_;
    asked_at_ += pipes_.stride();
  }
  __device__ void loaded() {
#pragma unroll
    for (int k = 0; k < N - 1; ++k) pipes_.tell(kTaken, kScatter, pipes_.peer(k), given_ + 1);
  }
  __device__ bool may_give(const Entry& entry) {
    while (pipes_.look(pipes_.reduced(entry)) != assistants() / 32)
      if (pipes_.over()) return false;
    if (kReturns && given_ >= returned_) returned_ = pipes_.allowed(kWritten, kGather);
    return !kReturns || given_ < returned_;
  }
  __device__ void give(u8* entry, const Entry& counted) {
    pipes_.say(pipes_.reduced(counted), 0);
    const u8* result = part(entry, pipes_.rank());
    const Tile to = to_(given_at_);
#pragma unroll
    for (int k = 0; k < (kReturns ? N - 1 : 0); ++k)
      if (Hand<kPlain>::leads())
        bulk_store(pipes_.slot_at(kGather, pipes_.peer(k), given_), result, to.pairs() * 16);
    Hand<kPlain>::store(to, result);
    ++given_;
    given_at_ += pipes_.stride();
  }
  __device__ void written(u32 all) {
#pragma unroll
    for (int k = 0; k < N - 1; ++k)
      if (kReturns && all > 0) pipes_.tell(kWritten, kGather, pipes_.peer(k), all);
  }

 private:
  static __device__ u32 assistants() { return TileChannel<N>::movers() - 32; }
  __device__ u8* part(u8* entry, int rank) const { return entry + rank * pipes_.tile_bytes(); }
  __device__ __forceinline__ void reduce(u8* entry, u32 pairs) const {
    constexpr int kBatch = N > 4 ? 1 : 2;  // under way at once
    Pair* result = reinterpret_cast<Pair*>(part(entry, pipes_.rank()));
    const u32 stride = assistants();
    for (u32 first = threadIdx.x - 32; first < pairs; first += kBatch * stride) {
      Pair v[kBatch][N];
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int r = 0; r < N; ++r)
          if (first + b * stride < pairs)
            v[b][r] = reinterpret_cast<const Pair*>(part(entry, r))[first + b * stride];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        u64 low[N], high[N];
#pragma unroll
        for (int r = 0; r < N; ++r) low[r] = v[b][r].a, high[r] = v[b][r].b;
        if (first + b * stride < pairs) result[first + b * stride] = {fold_(low), fold_(high)};
      }
    }
  }

  const Pipes<N>& pipes_;
  u64 asked_at_, given_at_;
  u32 asked_ = 0, given_ = 0, allowed_ = 0, returned_ = 0;
  Fold fold_;
  Own own_;
  To to_;
};

}  // namespace commlib
